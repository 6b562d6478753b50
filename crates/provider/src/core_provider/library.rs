//! Functions of the core, as a program calls them: answers of `fi_getinfo` ([`Infos`]), and the opening of a fabric.
//!
//! The core asks every provider, weir included. So [`is_looking`] says that this thread is inside such a call, and weir
//! has no answer then.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};

use super::objects::{GetInfo, Object, OpenFabric, RawFabric, RawProvider};
use crate::core_library;
use crate::ffi::FiInfo;

thread_local! {
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a look-up of core providers.
pub fn is_looking() -> bool {
    IS_LOOKING.get()
}

type Duplicate = unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo;
type Free = unsafe extern "C" fn(*mut FiInfo);
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// The text of a positive error number.
pub fn error_text(error: c_int) -> String {
    // SAFETY: the core exports this name with this type, unchanged since 1.0. The text is constant and ends with NUL.
    let text = unsafe {
        core_library::function::<ErrorText>(c"fi_strerror").map(|text| CStr::from_ptr(text(error)))
    };
    text.map_or_else(|| format!("error {error}"), |text| text.to_string_lossy().into_owned())
}

/// A list of answers of `fi_getinfo`, or hints. The core frees it.
pub struct Infos(NonNull<FiInfo>);

impl Infos {
    /// Hints without contents, in the sizes of the core's version. `None`: there is no core, or no memory is left.
    pub fn empty() -> Option<Infos> {
        // SAFETY: as in `error_text`. Of NULL it makes an empty structure.
        let info = unsafe { core_library::function::<Duplicate>(c"fi_dupinfo").map(|make| make(null())) };
        NonNull::new(info?).map(Infos)
    }

    /// The first of them.
    pub fn first(&self) -> *mut FiInfo {
        self.0.as_ptr()
    }

    /// A copy of one answer.
    ///
    /// # Safety
    /// `info` is in a list that is not freed.
    pub unsafe fn copy(info: *const FiInfo) -> Option<Infos> {
        // SAFETY: as in `error_text`, and the promise of the caller.
        let copy = unsafe { core_library::function::<Duplicate>(c"fi_dupinfo").map(|copy| copy(info)) };
        NonNull::new(copy?).map(Infos)
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: as in `error_text`. The list came from the core, and nobody else frees it.
        unsafe {
            if let Some(free) = core_library::function::<Free>(c"fi_freeinfo") {
                free(self.0.as_ptr());
            }
        }
    }
}

/// Who answers: the core, or a plug-in that the core has not loaded.
#[derive(Clone, Copy)]
pub enum Source {
    /// The core, for its providers.
    Core,
    /// A plug-in beside the core. It stays loaded.
    PlugIn(NonNull<RawProvider>),
}

impl Source {
    /// The plug-in in this file, if it is one. Its core must be the one that this process has.
    pub fn plug_in(file: &Path) -> Option<Source> {
        type Initialise = unsafe extern "C" fn() -> *mut RawProvider;
        let name = CString::new(file.as_os_str().as_bytes()).ok()?;
        // SAFETY: plug-ins are made to be loaded like this, by a process with libfabric. The name ends with NUL.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        // SAFETY: a handle of a loaded library, and a name that ends with NUL.
        let initialise = unsafe { libc::dlsym(library, c"fi_prov_ini".as_ptr()) };
        if initialise.is_null() {
            return None;
        }
        // SAFETY: by libfabric's manual (fi_provider.7) this name has this type in every plug-in.
        let provider = unsafe { std::mem::transmute::<*mut c_void, Initialise>(initialise)() };
        NonNull::new(provider).map(Source::PlugIn)
    }

    /// `fi_getinfo`. `None`: no answer.
    pub fn look_up(self, api_version: u32, flags: u64, hints: &Infos) -> Option<Infos> {
        // SAFETY: the core exports this name with this type, in every version; a plug-in's table has it.
        let get: GetInfo = unsafe {
            match self {
                Source::Core => core_library::function::<GetInfo>(c"fi_getinfo")?,
                Source::PlugIn(provider) => (*provider.as_ptr()).getinfo,
            }
        };
        let mut infos = null_mut();
        IS_LOOKING.set(true);
        // SAFETY: node and service may be NULL, the hints are whole, and the variable is ours.
        let result = unsafe { get(api_version, null(), null(), flags, hints.first(), &raw mut infos) };
        IS_LOOKING.set(false);
        if result == 0 { NonNull::new(infos).map(Infos) } else { None }
    }

    /// `fi_fabric`.
    ///
    /// # Errors
    /// The positive error number.
    pub fn open_fabric(self, info: &Infos, api_version: u32) -> Result<Object<RawFabric>, c_int> {
        // SAFETY: as in `look_up`. The attributes belong to the answer, which has its substructures.
        unsafe {
            let attributes = (*info.first()).fabric_attr;
            let open: OpenFabric = match self {
                Source::Core => core_library::function::<OpenFabric>(c"fi_fabric").ok_or(libc::ENOSYS)?,
                Source::PlugIn(provider) => {
                    (*attributes).api_version = api_version; // the core would have done it
                    (*provider.as_ptr()).fabric
                }
            };
            let fabric = Object::open(|fabric| open(attributes, fabric, null_mut()))?;
            (*fabric.pointer()).api_version = (*attributes).api_version;
            Ok(fabric)
        }
    }
}
