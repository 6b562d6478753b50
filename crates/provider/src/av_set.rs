//! Sets of addresses (`fi_av_set`): the members of a group, by rank. The object that C holds, and its calls, which insert,
//! remove and compare addresses. A set has numbers of its address vector, and each number once.
//!
//! Nothing here is sent. Each member makes an equal set by itself, and joins the group of it ([`crate::group`]).

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::domain_state::{Domain, skip_in_forked_child};

/// The object that C holds.
#[repr(C)]
pub struct SetHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsAvSet<SetHandle>,
    pub(crate) domain: Arc<Domain>,
    /// Index of the address vector.
    pub(crate) vector: usize,
    /// Two sets are never locked at the same time.
    numbers: Mutex<Vec<FiAddr>>,
}

object!(SetHandle, class::AV_SET, FID_OPS);

static FID_OPS: FiOps<SetHandle> = FiOps {
    size: size_of::<FiOps<SetHandle>>(),
    close,
    bind: no_bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsAvSet<SetHandle> = FiOpsAvSet {
    size: size_of::<FiOpsAvSet<SetHandle>>(),
    set_union,
    intersect,
    diff,
    insert,
    remove,
    addr: set_address,
};

/// The address of a set ([`set_address`]). Joining needs no group in which the members have met before, so all sets have
/// this one.
const SET_ADDRESS: FiAddr = 1 << 61;

/// `fi_av_set`: an empty set, all addresses of the vector, or those of a range.
///
/// # Errors
/// A key of a fabric manager: not supported. Unknown flags. A range without begin, end or stride: invalid.
pub fn open(
    domain: &Arc<Domain>,
    vector: usize,
    attr: Option<&FiAvSetAttr>,
    context: usize,
) -> Result<*mut SetHandle, Error> {
    let attr = attr.ok_or(Error::INVALID)?;
    if attr.comm_key_size != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    if attr.flags & !(flags::UNIVERSE | flags::ALL_SETS) != 0 {
        return Err(Error::BAD_FLAGS);
    }
    let mut state = domain.enter();
    let addresses = &mut state.vectors[vector];
    let range = match (attr.start_addr, attr.end_addr, attr.stride) {
        _ if attr.flags & flags::UNIVERSE != 0 => (0, addresses.end(), 1),
        (ADDR_UNSPEC, ADDR_UNSPEC, _) => (0, 0, 1),
        (ADDR_UNSPEC, ..) | (_, ADDR_UNSPEC, _) | (.., 0) => return Err(Error::INVALID),
        (start, end, _) if start > end => return Err(Error::INVALID),
        (start, end, stride) => (start, addresses.end().min(end + 1), stride),
    };
    let stride = usize::try_from(range.2).map_err(|_| Error::INVALID)?;
    let numbers = (range.0..range.1).step_by(stride).filter(|number| addresses.address(*number).is_some());
    let numbers = Mutex::new(numbers.collect());
    addresses.sets += 1;
    let fid = Fid { fclass: class::AV_SET, context, ops: (&raw const FID_OPS).cast() };
    Ok(hand_out(SetHandle { fid, ops: &OPS, domain: domain.clone(), vector, numbers }))
}

extern "C" fn close(set: Box<SetHandle>) -> c_int {
    skip_in_forked_child!(set);
    set.domain.enter().vectors[set.vector].sets -= 1;
    0
}

impl SetHandle {
    fn lock(&self) -> MutexGuard<'_, Vec<FiAddr>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the addresses, by rank.
    pub fn numbers(&self) -> Vec<FiAddr> {
        self.lock().clone()
    }

    /// Shows our numbers and those of another set of the same vector to `change`.
    fn change(&self, other: AnyObject, change: impl FnOnce(&mut Vec<FiAddr>, &[FiAddr])) -> c_int {
        let other = other
            .of::<SetHandle>()
            .filter(|other| Arc::ptr_eq(&self.domain, &other.domain) && self.vector == other.vector);
        let Some(other) = other.map(SetHandle::numbers) else { return Error::INVALID.code() };
        change(&mut self.lock(), &other);
        0
    }
}

extern "C" fn set_union(set: &SetHandle, other: AnyObject) -> c_int {
    set.change(other, |numbers, others| {
        let new: Vec<_> = others.iter().copied().filter(|number| !numbers.contains(number)).collect();
        numbers.extend(new);
    })
}

extern "C" fn intersect(set: &SetHandle, other: AnyObject) -> c_int {
    set.change(other, |numbers, others| numbers.retain(|number| others.contains(number)))
}

extern "C" fn diff(set: &SetHandle, other: AnyObject) -> c_int {
    set.change(other, |numbers, others| numbers.retain(|number| !others.contains(number)))
}

/// An address that is not in the vector, or in the set already, is invalid.
extern "C" fn insert(set: &SetHandle, number: FiAddr) -> c_int {
    let is_known = set.domain.enter().vectors[set.vector].address(number).is_some();
    let mut numbers = set.lock();
    if !is_known || numbers.contains(&number) {
        return Error::INVALID.code();
    }
    numbers.push(number);
    0
}

/// An address that is not in the set is invalid.
extern "C" fn remove(set: &SetHandle, number: FiAddr) -> c_int {
    let mut numbers = set.lock();
    let place = numbers.iter().position(|other| *other == number);
    status(place.map(|place| _ = numbers.remove(place)).ok_or(Error::INVALID))
}

extern "C" fn set_address(_set: &SetHandle, mut to: Out<FiAddr>) -> c_int {
    to.set(SET_ADDRESS);
    0
}
