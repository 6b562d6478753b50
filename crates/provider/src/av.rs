//! Address vectors (`fi_av`): the object that C holds, and its calls, which insert, remove and look up addresses.
//! `state/address_vector.rs` stores the addresses.
//!
//! Both types of vectors number addresses densely, and a new address gets the lowest free number. Only a removed
//! address loses its number. Its messages still arrive, from a source without number, and sends and receives that name
//! the number are refused, until the address or another one gets it.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use weir_link::ADDRESS_BYTES;

use crate::av_set::{self, SetHandle};
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::marks::{with_mark, without_mark};
use crate::state::address_vector::AddressVector;
use crate::state::domain_state::{Domain, skip_in_forked_child};

/// The object that C holds.
#[repr(C)]
pub struct VectorHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsAv<VectorHandle, SetHandle>,
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

static OPS: FiOpsAv<VectorHandle, SetHandle> = FiOpsAv {
    size: size_of::<FiOpsAv<VectorHandle, SetHandle>>(),
    insert,
    insertsvc: not_implemented,
    insertsym: not_implemented,
    remove,
    lookup,
    straddr,
    av_set,
    insert_auth_key: not_implemented,
    lookup_auth_key: not_implemented,
    set_user_id: not_implemented,
};

/// `fi_av_open`. Sets the type if the program left it open.
///
/// # Errors
/// Shared (named) vectors, insertion by events and several receive contexts: not implemented. Unknown type: invalid.
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
        match attr.av_type {
            av_type::UNSPEC => attr.av_type = av_type::TABLE,
            av_type::MAP | av_type::TABLE => {}
            _ => return Err(Error::INVALID),
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
    let has_sets = state.vectors[vector.index].sets > 0;
    if has_sets || state.endpoints.iter_mut().any(|endpoint| endpoint.uses_vector(vector.index)) {
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

/// `fi_av_insert`. Returns the number of addresses that got a number. A malformed address gets none: its place in
/// `numbers` is `FI_ADDR_NOTAVAIL`, and its place in `errors` is `FI_EINVAL`.
extern "C" fn insert(
    vector: &VectorHandle,
    addresses: InArray<[u8; ADDRESS_BYTES]>,
    count: usize,
    mut numbers: OutArray<FiAddr>,
    flags: u64,
    mut errors: OutArray<c_int>,
) -> c_int {
    if flags & !(flags::MORE | flags::SYNC_ERR) != 0 {
        return Error::BAD_FLAGS.code(); // for example user ids
    }
    let mut state = vector.domain.enter();
    let table = &mut state.vectors[vector.index];
    let mut inserted = 0;
    for index in 0..count {
        let Some(bytes) = addresses.at(index) else { return Error::INVALID.code() };
        let (address, is_marked) = without_mark(bytes);
        let (number, error) = match address.is_well_formed() {
            true => (table.insert(address, is_marked), 0),
            false => (ADDR_UNSPEC, libc::EINVAL),
        };
        inserted += c_int::from(error == 0);
        numbers.set(index, number);
        if flags & flags::SYNC_ERR != 0 {
            errors.set(index, error);
        }
    }
    inserted
}

extern "C" fn remove(vector: &VectorHandle, numbers: InArray<FiAddr>, count: usize, flags: u64) -> c_int {
    if flags != 0 {
        return Error::BAD_FLAGS.code(); // authorization keys
    }
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
    let state = vector.domain.enter();
    let table = &state.vectors[vector.index];
    let Some(address) = table.address(number) else { return Error::INVALID.code() };
    let room = bytes.value().unwrap_or(0).min(ADDRESS_BYTES);
    to.set_bytes(&with_mark(&address, table.is_marked(number))[..room]);
    bytes.set(ADDRESS_BYTES);
    0
}

extern "C" fn av_set(
    vector: &VectorHandle,
    attr: Option<&FiAvSetAttr>,
    mut to: Out<*mut SetHandle>,
    context: usize,
) -> c_int {
    status(av_set::open(&vector.domain, vector.index, attr, context).map(|set| to.set(set)))
}

/// `fi_av_straddr`. The text has no key, because programs print it.
extern "C" fn straddr(
    _vector: &VectorHandle,
    address: InArray<[u8; ADDRESS_BYTES]>,
    mut to: OutArray<u8>,
    mut bytes: Out<usize>,
) -> *const c_char {
    let text = format!("weir:{}\0", without_mark(address.at(0).unwrap_or([0; ADDRESS_BYTES])).0);
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
    use weir_link::Address;

    #[test]
    fn av_numbers_are_dense_and_removed_ones_are_reused() {
        let mut vector = AddressVector::default();
        let address = |byte| Address([byte; ADDRESS_BYTES]);
        assert_eq!([1, 2, 3].map(|byte| vector.insert(address(byte), false)), [0, 1, 2]);
        assert_eq!(vector.insert(address(2), false), 1);
        assert_eq!(vector.remove(1), Ok(false)); // it was inserted twice
        assert_eq!(vector.remove(1), Ok(true));
        assert_eq!(vector.remove(1), Err(Error::INVALID));
        assert_eq!(vector.number(&address(2)), None);
        assert_eq!(vector.insert(address(4), false), 1);
        assert_eq!(vector.address(1), Some(address(4)));
        assert_eq!(vector.address(u64::MAX), None);
    }
}
