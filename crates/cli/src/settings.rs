//! The list of all settings as text, for `weir settings` and for the help texts.

use std::fmt::Write;
use weir_engine::config::SETTINGS;

/// All settings with default, allowed values and meaning, as plain text.
pub fn text() -> String {
    let mut text =
        String::from("Settings are environment variables. A variable that is not set has its default.\n");
    for setting in SETTINGS {
        let default = if setting.default.is_empty() { "not set" } else { setting.default };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n  {}  (allowed: {}; default: {default})\n      {}\n",
            setting.variable, setting.allowed, setting.help
        );
    }
    text.push_str(
        "\n`weir run` reads settings from its options, --set and its environment. It checks them before the program starts, \
         and passes them to all ranks. With another launcher, give all ranks the same settings.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn settings_text_lists_every_setting() {
        let text = super::text();
        for setting in weir_engine::config::SETTINGS {
            assert!(text.contains(setting.variable) && text.contains(setting.help));
        }
        let flow = "FI_WEIR_FLOW  (allowed: unlimited, hardware, static, static-connection, adaptive, dynamic, demand; default: demand)";
        assert!(text.contains(flow));
    }
}
