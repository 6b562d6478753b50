//! The table of functions by which `libweir-mpi.so` uses the groups of this process's endpoints
//! ([`weir_engine::node_group_interface`]).

use weir_engine::node_group_interface::{NodeGroupFunctions, VERSION};
use weir_link::shm::node_group::{MAX_BROADCAST_BYTES, MAX_MEMBERS, MAX_VECTOR_BYTES};

use crate::{group_receives, marks, node_groups, roster};

static FUNCTIONS: NodeGroupFunctions = NodeGroupFunctions {
    version: VERSION,
    max_members: MAX_MEMBERS,
    max_vector_bytes: MAX_VECTOR_BYTES,
    max_broadcast_bytes: MAX_BROADCAST_BYTES,
    enter: roster::enter,
    ask: roster::ask,
    identify: node_groups::identify,
    probed: marks::probed,
    begin: node_groups::begin,
    finish: node_groups::finish,
    perform: node_groups::perform,
    take_receive: group_receives::take_receive,
    has_taken: group_receives::has_taken,
    leave: node_groups::leave,
};

/// The table of these functions: [`weir_engine::node_group_interface::ENTRY`].
// SAFETY: no other library of a process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn weir_node_groups() -> *const NodeGroupFunctions {
    &raw const FUNCTIONS
}
