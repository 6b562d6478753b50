//! Settings: read from the environment, and listed by `fi_info -e` and `fi_info -g weir`.

use std::ffi::CString;
use std::sync::Once;

use weir_engine::config::{SETTINGS, Settings, report_once_in_job};

use crate::errno::Error;
use crate::log;

/// The settings of this process. Reports a wrong setting to the user, because the core would only say that it found no
/// provider: once in a process, and once for the ranks of a job on a node.
///
/// # Errors
/// [`Error::INVALID`].
pub fn read() -> Result<Settings, Error> {
    static REPORT_ONCE: Once = Once::new();
    Settings::from_environment().map_err(|problem| {
        REPORT_ONCE.call_once(|| report_once_in_job(|| log::report(&problem.to_string())));
        Error::INVALID
    })
}

/// Registers the settings with the core, which lists them.
pub fn list() {
    for setting in SETTINGS {
        let help = format!("{} Allowed: {}. (default: {})", setting.help, setting.allowed, setting.default);
        if let (Ok(name), Ok(help)) = (CString::new(setting.parameter()), CString::new(help)) {
            log::define(&name, &help);
        }
    }
}
