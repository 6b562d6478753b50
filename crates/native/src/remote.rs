//! Put and get: copies to and from registered memory of any rank, the own one too.

use std::sync::Arc;

use weir_engine::RemoteArguments;
use weir_link::memory::OwnedMemory;

use crate::elements::{Plain, from_memory, to_memory};
use crate::state::{About, Buffers, Inner};
use crate::{Endpoint, Error, Request};

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank that has it.
    pub rank: u32,
    /// The key under which it is registered there.
    pub key: u64,
    /// Offset in it. Unit: bytes.
    pub offset: u64,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Put,
    Get,
}

impl Inner {
    /// Starts a copy between a place and `buffers.data`.
    ///
    /// # Errors
    /// A wrong rank, or [`Error::Again`].
    pub fn start_copy(&mut self, way: Way, place: Place, buffers: Buffers) -> Result<u64, Error> {
        let peer = self.peer(place.rank)?;
        let Place { rank, key, offset } = place;
        let about = About::Memory { rank, key, offset, bytes: buffers.data.bytes() };
        self.begin(about, buffers, |engine, post, memory, _| {
            let arguments = RemoteArguments { peer, key, offset, memory, data: None, inject: false };
            match way {
                Way::Put => engine.write(post, arguments),
                Way::Get => engine.read(post, arguments),
            }
        })
    }
}

impl Endpoint {
    /// Starts to copy `data` to a place. When it has ended, the bytes are there.
    ///
    /// # Errors
    /// A wrong rank, or [`Error::Again`].
    pub fn start_put<T: Plain>(&self, place: Place, data: &[T]) -> Result<Request<()>, Error> {
        let buffers = Buffers::one(to_memory(data));
        let number = self.shared().with(|inner| inner.start_copy(Way::Put, place, buffers))?;
        Ok(Request::new(Arc::clone(&self.owner), number, |_| ()))
    }

    /// [`Endpoint::start_put`], and waits.
    ///
    /// # Errors
    /// A wrong rank; [`Error::Lost`], [`Error::Refused`].
    pub fn put<T: Plain>(&self, place: Place, data: &[T]) -> Result<(), Error> {
        let buffers = || Buffers::one(to_memory(data));
        let number = self.shared().start_blocking(|inner| inner.start_copy(Way::Put, place, buffers()))?;
        self.shared().wait(number)?.map(|_| ())
    }

    /// Starts to copy `count` elements from a place.
    ///
    /// # Errors
    /// A wrong rank or count, or [`Error::Again`].
    pub fn start_get<T: Plain>(&self, place: Place, count: usize) -> Result<Request<Vec<T>>, Error> {
        let bytes = bytes_of::<T>(count)?;
        let buffers = Buffers::one(OwnedMemory::new(bytes));
        let number = self.shared().with(|inner| inner.start_copy(Way::Get, place, buffers))?;
        Ok(Request::new(Arc::clone(&self.owner), number, elements))
    }

    /// [`Endpoint::start_get`], and waits.
    ///
    /// # Errors
    /// A wrong rank or count; [`Error::Lost`], [`Error::Refused`].
    pub fn get<T: Plain>(&self, place: Place, count: usize) -> Result<Vec<T>, Error> {
        let bytes = bytes_of::<T>(count)?;
        let buffers = || Buffers::one(OwnedMemory::new(bytes));
        let number = self.shared().start_blocking(|inner| inner.start_copy(Way::Get, place, buffers()))?;
        self.shared().wait(number)?.map(elements)
    }
}

/// Length of `count` elements. Unit: bytes.
///
/// # Errors
/// It is longer than memory can be.
pub(crate) fn bytes_of<T>(count: usize) -> Result<usize, Error> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    let most = isize::MAX as usize / size_of::<T>();
    bytes.ok_or_else(|| Error::argument("number of elements", count, format!("0 to {most}")))
}

/// The elements in the memory of an operation that has ended.
pub(crate) fn elements<T: Plain>(memory: Option<OwnedMemory>) -> Vec<T> {
    from_memory(&memory.expect("the operation owns its result"))
}
