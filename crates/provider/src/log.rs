//! Messages to the user on standard error, and the core's functions for logging and for listing settings, if they
//! exist.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::core_library;

/// Shows the user an error or a possible problem, at every log level. Written in one piece, because many ranks share
/// the terminal.
pub fn report(text: &str) {
    use std::io::Write;
    // A closed or full standard error is no reason to fail.
    let _ = std::io::stderr().write_all(format!("weir: {text}\n").as_bytes());
}

/// `FI_LOG_INFO` of libfabric's log levels, shown with `FI_LOG_LEVEL=info`.
const LEVEL_INFO: c_int = 2;
/// `FI_LOG_CORE` of libfabric's subsystems.
const SUBSYSTEM_CORE: c_int = 0;
/// `FI_PARAM_STRING`.
const PARAM_STRING: c_int = 0;

type LogEnabled = unsafe extern "C" fn(*const c_void, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(*const c_void, c_int, c_int, *const c_char, c_int, *const c_char, ...);
type ParamDefine = unsafe extern "C" fn(*const c_void, *const c_char, c_int, *const c_char, ...) -> c_int;

/// Writes to the core's log, at level info.
pub fn info(text: impl FnOnce() -> String) {
    // SAFETY: the core exports these names with these types, unchanged since 1.0.
    let functions = unsafe {
        (core_library::function::<LogEnabled>(c"fi_log_enabled"), core_library::function::<Log>(c"fi_log"))
    };
    let (Some(enabled), Some(log)) = functions else { return };
    let provider = core_library::provider();
    let Ok(text) = CString::new(text()) else { return };
    // SAFETY: the provider is the structure that the core has got, the strings end with NUL, and "%s" takes the one
    // argument.
    unsafe {
        if enabled(provider, LEVEL_INFO, SUBSYSTEM_CORE) != 0 {
            let function = c"weir".as_ptr();
            log(provider, LEVEL_INFO, SUBSYSTEM_CORE, function, 0, c"%s\n".as_ptr(), text.as_ptr());
        }
    }
}

/// Registers a setting with the core. `name` is without `FI_WEIR_`, in lower case.
pub fn define(name: &CStr, help: &CStr) {
    // SAFETY: as in `info`.
    let Some(define) = (unsafe { core_library::function::<ParamDefine>(c"fi_param_define") }) else { return };
    // SAFETY: the provider is the structure that the core has got, the strings end with NUL, and "%s" takes the one
    // argument.
    unsafe { define(core_library::provider(), name.as_ptr(), PARAM_STRING, c"%s".as_ptr(), help.as_ptr()) };
}
