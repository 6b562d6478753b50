//! Compares libfabric's structures and constants in `ffi` with the headers of libfabric, if they are installed. A C
//! compiler checks each size, offset and value. `CPATH` can name the headers of another version.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};
use weir_fi::core_provider::objects::*;
use weir_fi::ffi::{self, *};

const HEADERS: &str = "#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
    #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n\
    #include <rdma/fi_tagged.h>\n#include <rdma/fi_atomic.h>\n#include <rdma/fi_collective.h>\n\
    #include <rdma/providers/fi_prov.h>\n#define VERSION FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)\n";

/// Compiles `program` without output. Returns the compiler's messages, which are empty if it has no error. `None`:
/// there is no compiler.
fn errors(program: &str) -> Option<String> {
    let mut compiler = Command::new("cc");
    compiler.args(["-fsyntax-only", "-xc", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut compiler = compiler.spawn().ok()?;
    compiler.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("the compiler reads it");
    let output = compiler.wait_with_output().expect("it ends");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !messages.is_empty());
    Some(if output.status.success() { String::new() } else { messages })
}

fn check(assertions: &str) {
    match errors(HEADERS).as_deref() {
        Some("") => {}
        _ => return eprintln!("skipped: no C compiler, or no headers of libfabric here"),
    }
    let wrong = HEADERS.to_owned() + "_Static_assert(sizeof(struct fi_info) == 1, \"\");\n";
    assert_ne!(errors(&wrong).as_deref(), Some(""), "a wrong size is an error");
    let messages = errors(&(HEADERS.to_owned() + assertions)).expect("a compiler");
    assert!(messages.is_empty(), "`ffi` and the headers of libfabric differ:\n{messages}");
}

/// The size of a member.
fn bytes<S, M>(_: impl Fn(&S) -> &M) -> usize {
    size_of::<M>()
}

/// Adds assertions about members: `since, "struct fi_x", Type { member, member = "name in C" }`. All members of the Rust
/// type must be listed, which the compiler checks.
macro_rules! members {
    ($to:ident, $since:expr, $name:literal, $type:ident $(<$($generic:ty),*>)? { $($member:ident $(= $c:literal)?),* }) => {
        let _ = |value: &$type $(<$($generic),*>)?| { let $type { $($member: _),* } = value; };
        members!($to, $since, $name, $type $(<$($generic),*>)?: $($member $(= $c)?),*);
    };
    // Some members.
    ($to:ident, $since:expr, $name:literal, $type:ty: $($member:ident $(= $c:literal)?),*) => {
        let (major, minor) = $since;
        writeln!($to, "#if VERSION >= FI_VERSION({major}, {minor})").expect("a string");
        $({
            let member = [stringify!($member) $(, $c)?].last().copied().expect("one or two");
            let (offset, bytes) = (offset_of!($type, $member), bytes(|value: &$type| &value.$member));
            writeln!(
                $to,
                "_Static_assert(offsetof({0}, {member}) == {offset} && sizeof((({0} *)0)->{member}) == {bytes}, \
                 \"{0}.{member}: {bytes} bytes at {offset} in Rust\");",
                $name
            ).expect("a string");
        })*
        writeln!($to, "#endif").expect("a string");
    };
}

/// As [`members`] for a structure that is the same in all versions: its size is equal, too.
macro_rules! structure {
    ($to:ident, $name:literal, $type:ident $(<$($generic:ty),*>)? { $($members:tt)* }) => {
        members!($to, (1, 17), $name, $type $(<$($generic),*>)? { $($members)* });
        let bytes = size_of::<$type $(<$($generic),*>)?>();
        writeln!($to, "_Static_assert(sizeof({0}) == {bytes}, \"{0}: {bytes} bytes in Rust\");", $name).expect("a string");
    };
}

/// The other side of the tables: what this crate calls.
#[test]
fn objects_of_other_providers_have_the_layout_of_the_headers() {
    let mut c = String::new();
    structure!(c, "struct fid", RawFid { fclass, context, ops });
    members!(c, (1, 17), "struct fi_ops", RawOps: size, close, bind, control);
    members!(c, (1, 17), "struct fid_fabric", RawFabric: fid, ops, api_version);
    members!(c, (1, 17), "struct fi_ops_fabric", RawFabricOps: size, domain, trywait);
    structure!(c, "struct fid_domain", RawDomain { fid, ops, mr });
    members!(c, (1, 17), "struct fi_ops_domain", RawDomainOps: size, av_open, cq_open, endpoint);
    members!(c, (1, 17), "struct fi_ops_mr", RawMrOps: size, reg);
    structure!(c, "struct fid_mr", RawMr { fid, mem_desc, key });
    structure!(c, "struct fid_av", RawAv { fid, ops });
    members!(c, (1, 17), "struct fi_ops_av", RawAvOps: size, insert);
    structure!(c, "struct fid_cq", RawCq { fid, ops });
    members!(c, (1, 17), "struct fi_ops_cq", RawCqOps: size, read, readerr);
    members!(c, (1, 17), "struct fid_ep", RawEp: fid, cm, msg);
    members!(c, (1, 17), "struct fi_ops_cm", RawCmOps: size, getname);
    members!(c, (1, 17), "struct fi_ops_msg", RawMsgOps: size, recv, send);
    members!(c, (1, 17), "struct fi_provider", RawProvider: version, fi_version, name, getinfo, fabric, cleanup);
    check(&c);
}

#[test]
fn structures_have_the_layout_of_the_headers() {
    let mut c = String::new();
    structure!(c, "struct fid", Fid { fclass, context, ops });
    structure!(
        c,
        "struct fi_tx_attr",
        FiTxAttr {
            caps,
            mode,
            op_flags,
            msg_order,
            comp_order,
            inject_size,
            size,
            iov_limit,
            rma_iov_limit,
            tclass
        }
    );
    structure!(
        c,
        "struct fi_rx_attr",
        FiRxAttr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
    );
    structure!(c, "struct fi_ep_attr", FiEpAttr {
        ep_type = "type", protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
        max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key
    });
    members!(
        c,
        (1, 17),
        "struct fi_domain_attr",
        FiDomainAttr {
            domain,
            name,
            threading,
            control_progress,
            data_progress,
            resource_mgmt,
            av_type,
            mr_mode,
            mr_key_size,
            cq_data_size,
            cq_cnt,
            ep_cnt,
            tx_ctx_cnt,
            rx_ctx_cnt,
            max_ep_tx_ctx,
            max_ep_rx_ctx,
            max_ep_stx_ctx,
            max_ep_srx_ctx,
            cntr_cnt,
            mr_iov_limit,
            caps,
            mode,
            auth_key,
            auth_key_size,
            max_err_data,
            mr_cnt,
            tclass
        }
    );
    members!(c, (1, 20), "struct fi_domain_attr", FiDomainAttrFull: max_ep_auth_key);
    members!(c, (2, 0), "struct fi_domain_attr", FiDomainAttrFull: max_group_id);
    members!(c, (2, 5), "struct fi_domain_attr", FiDomainAttrFull: max_cntr_value, max_err_cntr_value);
    structure!(
        c,
        "struct fi_fabric_attr",
        FiFabricAttr { fabric, name, prov_name, prov_version, api_version }
    );
    structure!(
        c,
        "struct fi_info",
        FiInfo {
            next,
            caps,
            mode,
            addr_format,
            src_addrlen,
            dest_addrlen,
            src_addr,
            dest_addr,
            handle,
            tx_attr,
            rx_attr,
            ep_attr,
            domain_attr,
            fabric_attr,
            nic
        }
    );
    structure!(c, "struct fi_av_attr", FiAvAttr {
        av_type = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags
    });
    structure!(
        c,
        "struct fi_cq_attr",
        FiCqAttr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
    );
    structure!(c, "struct fi_cntr_attr", FiCntrAttr { events, wait_obj, wait_set, flags });
    structure!(c, "struct fi_eq_attr", FiEqAttr { size, flags, wait_obj, signaling_vector, wait_set });
    members!(
        c,
        (1, 17),
        "struct fi_mr_attr",
        FiMrAttr { mr_iov, iov_count, access, offset, requested_key, context }
    );
    structure!(c, "struct fi_msg", FiMsg { msg_iov, desc, iov_count, addr, context, data });
    structure!(
        c,
        "struct fi_msg_tagged",
        FiMsgTagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
    );
    structure!(c, "struct fi_rma_iov", FiRmaIov { addr, len, key });
    structure!(
        c,
        "struct fi_msg_rma",
        FiMsgRma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
    );
    structure!(c, "struct fi_cq_tagged_entry", FiCqTaggedEntry { op_context, flags, len, buf, data, tag });
    structure!(
        c,
        "struct fi_av_set_attr",
        FiAvSetAttr { count, start_addr, end_addr, stride, comm_key_size, comm_key, flags }
    );
    structure!(
        c,
        "struct fi_collective_attr",
        FiCollectiveAttr { op, datatype, datatype_attr, max_members, mode }
    );
    structure!(c, "struct fi_collective_addr", FiCollectiveAddr { set, coll_addr });
    structure!(c, "struct fi_eq_entry", FiEqEntry { fid, context, data });
    structure!(
        c,
        "struct fi_eq_err_entry",
        FiEqErrEntry { fid, context, data, err, prov_errno, err_data, err_data_size }
    );
    members!(c, (1, 17), "struct fi_cq_err_entry", FiCqErrEntry:
        op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size);
    members!(c, (1, 20), "struct fi_cq_err_entry", FiCqErrEntry: src_addr);
    check(&c);
}

#[test]
fn tables_of_functions_have_the_layout_of_the_headers() {
    let mut c = String::new();
    structure!(c, "struct fi_provider", FiProvider<()> {
        version, fi_version, context, name, getinfo, fabric, cleanup
    });
    // Later versions may append functions: each table tells its size.
    members!(c, (1, 17), "struct fi_ops", FiOps<()> { size, close, bind, control, ops_open, tostr, ops_set });
    members!(c, (1, 17), "struct fi_ops_fabric", FiOpsFabric<(), (), ()> {
        size, domain, passive_ep, eq_open, wait_open, trywait, domain2
    });
    members!(c, (1, 17), "struct fi_ops_domain", FiOpsDomain<(), (), (), (), (), ()> {
        size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx, query_atomic,
        query_collective, endpoint2
    });
    members!(c, (1, 17), "struct fi_ops_mr", FiOpsMr<(), ()> { size, reg, regv, regattr });
    members!(c, (1, 17), "struct fi_ops_av", FiOpsAv<(), ()>:
        size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set);
    members!(c, (1, 20), "struct fi_ops_av", FiOpsAv<(), ()>: insert_auth_key, lookup_auth_key);
    members!(c, (2, 0), "struct fi_ops_av", FiOpsAv<(), ()>: set_user_id);
    members!(c, (1, 17), "struct fi_ops_cq", FiOpsCq<()> {
        size, read, readfrom, readerr, sread, sreadfrom, signal, strerror
    });
    members!(c, (1, 17), "struct fi_ops_cntr", FiOpsCntr<()> { size, read, readerr, add, set, wait, adderr, seterr });
    members!(c, (1, 17), "struct fi_ops_poll", FiOpsPoll<()> { size, poll, poll_add, poll_del });
    members!(c, (1, 17), "struct fi_ops_eq", FiOpsEq<()> { size, read, readerr, write, sread, strerror });
    members!(c, (1, 17), "struct fi_ops_ep", FiOpsEp<()> {
        size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left
    });
    members!(c, (1, 17), "struct fi_ops_cm", FiOpsCm<()> {
        size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join
    });
    members!(c, (1, 17), "struct fi_ops_msg", FiOpsMsg<()> {
        size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata
    });
    members!(c, (1, 17), "struct fi_ops_tagged", FiOpsTagged<()> {
        size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata
    });
    members!(c, (1, 17), "struct fi_ops_av_set", FiOpsAvSet<()> {
        size, set_union, intersect, diff, insert, remove, addr
    });
    members!(c, (1, 17), "struct fi_ops_collective", FiOpsCollective<()> {
        size, barrier, broadcast, alltoall, allreduce, allgather, reduce_scatter, reduce, scatter, gather, msg,
        barrier2
    });
    members!(c, (1, 17), "struct fi_ops_rma", FiOpsRma<()> {
        size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata
    });
    check(&c);
}

#[test]
fn constants_have_the_values_of_the_headers() {
    let mut c = String::new();
    let mut equal = |name: &str, value: u64| {
        writeln!(c, "_Static_assert((uint64_t)({name}) == {value}ULL, \"{name} is {value} in Rust\");")
            .expect("a string");
    };
    equal("FI_VERSION(1, 17)", ffi::version(1, 17).into());
    equal("FI_ADDR_UNSPEC", ADDR_UNSPEC);
    for (name, value) in [
        ("FI_MSG", caps::MSG),
        ("FI_RMA", caps::RMA),
        ("FI_TAGGED", caps::TAGGED),
        ("FI_ATOMIC", caps::ATOMIC),
        ("FI_COLLECTIVE", caps::COLLECTIVE),
        ("FI_READ", caps::READ),
        ("FI_WRITE", caps::WRITE),
        ("FI_RECV", caps::RECV),
        ("FI_SEND", caps::SEND),
        ("FI_REMOTE_READ", caps::REMOTE_READ),
        ("FI_REMOTE_WRITE", caps::REMOTE_WRITE),
        ("FI_MULTI_RECV", caps::MULTI_RECV),
        ("FI_HMEM", caps::HMEM),
        ("FI_LOCAL_COMM", caps::LOCAL_COMM),
        ("FI_REMOTE_COMM", caps::REMOTE_COMM),
        ("FI_SOURCE", caps::SOURCE),
        ("FI_DIRECTED_RECV", caps::DIRECTED_RECV),
        ("FI_MSG", flags::MSG),
        ("FI_RMA", flags::RMA),
        ("FI_TAGGED", flags::TAGGED),
        ("FI_ATOMIC", flags::ATOMIC),
        ("FI_COLLECTIVE", flags::COLLECTIVE),
        ("FI_READ", flags::READ),
        ("FI_WRITE", flags::WRITE),
        ("FI_RECV", flags::RECV),
        ("FI_SEND", flags::SEND),
        ("FI_REMOTE_READ", flags::REMOTE_READ),
        ("FI_REMOTE_WRITE", flags::REMOTE_WRITE),
        ("FI_MULTI_RECV", flags::MULTI_RECV),
        ("FI_REMOTE_CQ_DATA", flags::REMOTE_CQ_DATA),
        ("FI_MORE", flags::MORE),
        ("FI_PEEK", flags::PEEK),
        ("FI_FENCE", flags::FENCE),
        ("FI_COMPLETION", flags::COMPLETION),
        ("FI_INJECT", flags::INJECT),
        ("FI_INJECT_COMPLETE", flags::INJECT_COMPLETE),
        ("FI_TRANSMIT_COMPLETE", flags::TRANSMIT_COMPLETE),
        ("FI_DELIVERY_COMPLETE", flags::DELIVERY_COMPLETE),
        ("FI_MATCH_COMPLETE", flags::MATCH_COMPLETE),
        ("FI_SYNC_ERR", flags::SYNC_ERR),
        ("FI_UNIVERSE", flags::UNIVERSE),
        (
            "FI_BARRIER_SET | FI_BROADCAST_SET | FI_ALLTOALL_SET | FI_ALLREDUCE_SET | FI_ALLGATHER_SET | \
             FI_REDUCE_SCATTER_SET | FI_REDUCE_SET | FI_SCATTER_SET | FI_GATHER_SET",
            flags::ALL_SETS,
        ),
        ("FI_DISCARD", flags::DISCARD),
        ("FI_CLAIM", flags::CLAIM),
        ("FI_SELECTIVE_COMPLETION", flags::SELECTIVE_COMPLETION),
        ("FI_SOURCE", flags::SOURCE),
        ("FI_NUMERICHOST", flags::NUMERIC_HOST),
        ("FI_CONTEXT", mode::CONTEXT),
        ("FI_CONTEXT2", mode::CONTEXT2),
        ("FI_RX_CQ_DATA", mode::RX_CQ_DATA),
        ("FI_SOCKADDR", address_format::SOCKADDR.into()),
        ("FI_SOCKADDR_IN", address_format::SOCKADDR_IN.into()),
        ("FI_SOCKADDR_IN6", address_format::SOCKADDR_IN6.into()),
        ("FI_ORDER_SAS", order::SEND_AFTER_SEND),
        (
            "FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW",
            order::ATOMIC,
        ),
    ] {
        equal(name, value);
    }
    for (name, value) in [
        ("FI_CLASS_FABRIC", class::FABRIC),
        ("FI_CLASS_DOMAIN", class::DOMAIN),
        ("FI_CLASS_EP", class::EP),
        ("FI_CLASS_AV", class::AV),
        ("FI_CLASS_MR", class::MR),
        ("FI_CLASS_EQ", class::EQ),
        ("FI_CLASS_CQ", class::CQ),
        ("FI_CLASS_CNTR", class::CNTR),
        ("FI_CLASS_MC", class::MC),
        ("FI_CLASS_AV_SET", class::AV_SET),
    ] {
        equal(name, value as u64);
    }
    for (name, value) in [
        ("FI_THREAD_SAFE", threading::SAFE),
        ("FI_THREAD_DOMAIN", threading::DOMAIN),
        ("FI_THREAD_ENDPOINT", threading::LAST),
        ("FI_PROGRESS_UNSPEC", progress::UNSPEC),
        ("FI_PROGRESS_AUTO", progress::AUTO),
        ("FI_PROGRESS_MANUAL", progress::MANUAL),
        ("FI_RM_ENABLED", resource_mgmt::ENABLED),
        ("FI_AV_UNSPEC", av_type::UNSPEC),
        ("FI_AV_TABLE", av_type::TABLE),
        ("FI_MR_BASIC", mr_mode::BASIC),
        ("FI_MR_SCALABLE", mr_mode::SCALABLE),
        ("FI_MR_LOCAL", mr_mode::LOCAL),
        ("FI_MR_VIRT_ADDR", mr_mode::VIRT_ADDR),
        ("FI_MR_ALLOCATED", mr_mode::ALLOCATED),
        ("FI_MR_PROV_KEY", mr_mode::PROV_KEY),
        ("FI_MR_ENDPOINT", mr_mode::ENDPOINT),
        ("FI_EP_UNSPEC", ep_type::UNSPEC),
        ("FI_EP_RDM", ep_type::RDM),
        ("FI_WAIT_NONE", wait_obj::NONE),
        ("FI_WAIT_UNSPEC", wait_obj::UNSPEC),
        ("FI_WAIT_YIELD", wait_obj::YIELD),
        ("FI_CQ_FORMAT_UNSPEC", cq_format::UNSPEC),
        ("FI_CQ_FORMAT_CONTEXT", cq_format::CONTEXT),
        ("FI_CQ_FORMAT_MSG", cq_format::MSG),
        ("FI_CQ_FORMAT_DATA", cq_format::DATA),
        ("FI_CQ_FORMAT_TAGGED", cq_format::TAGGED),
        ("FI_JOIN_COMPLETE", event::JOIN_COMPLETE as i32),
        ("FI_BARRIER", collective_op::BARRIER),
        ("FI_BROADCAST", collective_op::BROADCAST),
        ("FI_ALLTOALL", collective_op::ALLTOALL),
        ("FI_ALLREDUCE", collective_op::ALLREDUCE),
        ("FI_ALLGATHER", collective_op::ALLGATHER),
        ("FI_REDUCE_SCATTER", collective_op::REDUCE_SCATTER),
        ("FI_REDUCE", collective_op::REDUCE),
        ("FI_SCATTER", collective_op::SCATTER),
        ("FI_GATHER", collective_op::GATHER),
        ("FI_VOID", collective_type::VOID),
        ("FI_NOOP", collective_type::NOOP),
        ("FI_ENABLE", control::ENABLE),
        ("FI_REFRESH", control::REFRESH),
        ("FI_OPT_ENDPOINT", option::LEVEL_ENDPOINT),
        ("FI_OPT_MIN_MULTI_RECV", option::MIN_MULTI_RECV),
    ] {
        equal(name, value as u64);
    }
    check(&c);
}
