//! libfabric's objects that C holds (`struct fid`): handing them out, and getting them back as arguments.
//!
//! Objects arrive as `&Handle`: [`hand_out`] made them, and they are not closed yet. In `fi_close` they arrive as
//! `Box<Handle>`: the program returns them, and no other call is running. A call that takes objects of several kinds gets
//! an [`AnyObject`].

use std::ffi::c_void;
use std::marker::PhantomData;

/// The beginning of every object.
#[repr(C)]
pub struct Fid {
    /// Kind of the object.
    pub fclass: usize,
    /// The program's context.
    pub context: usize,
    /// A [`crate::ffi::FiOps`] of the object's kind.
    pub ops: *const c_void,
}

const _: () = assert!(size_of::<Fid>() == 24);

/// Gives an object to the program. C keeps the pointer until it returns it in `fi_close`.
pub fn hand_out<H>(handle: H) -> *mut H {
    Box::into_raw(Box::new(handle))
}

/// A kind of object of this provider, recognised by its [`Fid`].
///
/// # Safety
/// The type is `repr(C)` and begins with a `Fid`. Every `Fid` with this class and [`Object::ops`] is the beginning of
/// one.
pub unsafe trait Object {
    /// `fid.fclass` of all objects of this type.
    const CLASS: usize;
    /// The table that only objects of this type have.
    fn ops() -> *const c_void;
}

/// An object of any kind that the program names by its `Fid`. It may belong to another provider. May be NULL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct AnyObject<'a>(*const Fid, PhantomData<&'a Fid>);

impl<'a> AnyObject<'a> {
    /// Its kind.
    pub fn class(self) -> Option<usize> {
        // SAFETY: NULL, or an open object of the program, which begins with a Fid.
        unsafe { self.0.as_ref() }.map(|fid| fid.fclass)
    }

    /// The whole object, if it is this provider's and of this kind.
    pub fn of<T: Object>(self) -> Option<&'a T> {
        // SAFETY: as in `class`.
        let fid = unsafe { self.0.as_ref() }?;
        if fid.fclass != T::CLASS || fid.ops != T::ops() {
            return None;
        }
        // SAFETY: class and table prove that the Fid is the beginning of a T (promise of `Object`). `hand_out` made
        // the pointer, which covers the whole T, and the program has not closed it.
        Some(unsafe { &*self.0.cast::<T>() })
    }
}

impl From<*const Fid> for AnyObject<'_> {
    /// For pointers in the program's structures.
    fn from(fid: *const Fid) -> Self {
        AnyObject(fid, PhantomData)
    }
}

/// Declares how objects of a type are recognised: `object!(Handle, class, table)`.
macro_rules! object {
    ($handle:ty, $class:expr, $table:expr) => {
        // SAFETY: the handle is `repr(C)` with its `Fid` first. The table is private to the file that makes handles,
        // so no other object has it.
        unsafe impl crate::ffi::objects::Object for $handle {
            const CLASS: usize = $class;
            fn ops() -> *const std::ffi::c_void {
                (&raw const $table).cast()
            }
        }
        const _: () = assert!(std::mem::offset_of!($handle, fid) == 0);
    };
}
pub(crate) use object;
