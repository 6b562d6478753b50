//! Address vectors (`fi_av`): the object that C holds, and its calls, which insert, remove and look up addresses.
//! `state/address_vector.rs` stores the addresses.

use std::ffi::{c_char, c_int};
use std::fmt::Write;
use std::sync::Arc;

use weir_link::{ADDRESS_BYTES, Address};

use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::address_vector::AddressVector;
use crate::state::domain_state::{Domain, skip_in_forked_child};

/// The object that C holds.
#[repr(C)]
pub struct VectorHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsAv<VectorHandle>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) index: usize,
}

object!(VectorHandle, class::AV, FID_OPS);

static FID_OPS: FiOps<VectorHandle> = FiOps {
    size: size_of::<FiOps<VectorHandle>>(),
    close,
    bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsAv<VectorHandle> = FiOpsAv {
    size: size_of::<FiOpsAv<VectorHandle>>(),
    insert,
    insertsvc: not_implemented,
    insertsym: not_implemented,
    remove,
    lookup,
    straddr,
    av_set: not_implemented,
    insert_auth_key: not_implemented,
    lookup_auth_key: not_implemented,
    set_user_id: not_implemented,
};

/// `fi_av_open`. Sets the type if the program left it open.
///
/// # Errors
/// Shared (named) vectors, insertion by events and several receive contexts: not implemented.
pub fn open(
    domain: &Arc<Domain>,
    attr: Option<&mut FiAvAttr>,
    context: usize,
) -> Result<*mut VectorHandle, Error> {
    let mut vector = AddressVector::default();
    if let Some(attr) = attr {
        if !attr.name.is_null() || attr.flags != 0 || attr.rx_ctx_bits != 0 {
            return Err(Error::NOT_IMPLEMENTED);
        }
        if attr.av_type == av_type::UNSPEC {
            attr.av_type = av_type::TABLE;
        }
        vector.expected = attr.count;
    }
    let index = domain.enter().vectors.insert(vector);
    let fid = Fid { fclass: class::AV, context, ops: (&raw const FID_OPS).cast() };
    Ok(hand_out(VectorHandle { fid, ops: &OPS, domain: domain.clone(), index }))
}

extern "C" fn close(vector: Box<VectorHandle>) -> c_int {
    skip_in_forked_child!(vector);
    let mut state = vector.domain.enter();
    if state.endpoints.iter_mut().any(|endpoint| endpoint.uses_vector(vector.index)) {
        drop(state);
        Box::leak(vector); // the program keeps it
        return Error::BUSY.code();
    }
    state.vectors.remove(vector.index);
    0
}

/// Event queues can be bound. No event is reported, because insertion is complete on return.
extern "C" fn bind(_vector: &VectorHandle, other: AnyObject, _flags: u64) -> c_int {
    status(if other.class() == Some(class::EQ) { Ok(()) } else { Err(Error::INVALID) })
}

extern "C" fn insert(
    vector: &VectorHandle,
    addresses: InArray<[u8; ADDRESS_BYTES]>,
    count: usize,
    mut numbers: OutArray<FiAddr>,
    flags: u64,
    mut errors: OutArray<c_int>,
) -> c_int {
    let mut state = vector.domain.enter();
    let table = &mut state.vectors[vector.index];
    for index in 0..count {
        let Some(address) = addresses.at(index) else { return Error::INVALID.code() };
        numbers.set(index, table.insert(Address(address)));
        if flags & flags::SYNC_ERR != 0 {
            errors.set(index, 0);
        }
    }
    count as c_int
}

extern "C" fn remove(vector: &VectorHandle, numbers: InArray<FiAddr>, count: usize, _flags: u64) -> c_int {
    let mut state = vector.domain.enter();
    for index in 0..count {
        let number = numbers.at(index).ok_or(Error::INVALID);
        match number.and_then(|number| state.vectors[vector.index].remove(number)) {
            Err(error) => return error.code(),
            Ok(false) => {}
            Ok(true) => {
                for endpoint in
                    state.endpoints.iter_mut().filter(|endpoint| endpoint.uses_vector(vector.index))
                {
                    endpoint.clear_cached_numbers();
                }
            }
        }
    }
    0
}

extern "C" fn lookup(
    vector: &VectorHandle,
    number: FiAddr,
    mut to: OutArray<u8>,
    mut bytes: Out<usize>,
) -> c_int {
    let Some(address) = vector.domain.enter().vectors[vector.index].address(number) else {
        return Error::INVALID.code();
    };
    let room = bytes.value().unwrap_or(0).min(ADDRESS_BYTES);
    to.set_bytes(&address.0[..room]);
    bytes.set(ADDRESS_BYTES);
    0
}

extern "C" fn straddr(
    _vector: &VectorHandle,
    address: InArray<[u8; ADDRESS_BYTES]>,
    mut to: OutArray<u8>,
    mut bytes: Out<usize>,
) -> *const c_char {
    let mut text = String::from("weir:");
    for byte in address.at(0).unwrap_or([0; ADDRESS_BYTES]) {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
    }
    text.push('\0');
    let room = bytes.value().unwrap_or(0).min(text.len());
    if room > 0 {
        to.set_bytes(&text.as_bytes()[..room - 1]);
        to.set(room - 1, 0);
    }
    bytes.set(text.len());
    to.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn av_numbers_are_dense_and_removed_ones_are_reused() {
        let mut vector = AddressVector::default();
        let address = |byte| Address([byte; ADDRESS_BYTES]);
        assert_eq!([1, 2, 3].map(|byte| vector.insert(address(byte))), [0, 1, 2]);
        assert_eq!(vector.insert(address(2)), 1);
        assert_eq!(vector.remove(1), Ok(false)); // it was inserted twice
        assert_eq!(vector.remove(1), Ok(true));
        assert_eq!(vector.remove(1), Err(Error::INVALID));
        assert_eq!(vector.number(&address(2)), None);
        assert_eq!(vector.insert(address(4)), 1);
        assert_eq!(vector.address(1), Some(address(4)));
        assert_eq!(vector.address(u64::MAX), None);
    }
}
