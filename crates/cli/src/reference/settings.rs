//! The reference page of settings, generated from `weir_engine::config::SETTINGS`.

use super::markdown::{GENERATED, escape, item, paragraph};
use weir_engine::config::SETTINGS;

pub fn page() -> String {
    let mut page = format!("# Settings\n\n{GENERATED}\n");
    page += &paragraph(
        "Settings are environment variables. They must be the same for all ranks of a job. A variable that is not set, or \
         is empty, has its default. `weir run` also accepts every setting as `--set NAME=VALUE`, and `weir settings` \
         prints this list.",
    );
    for setting in SETTINGS {
        let default = match setting.default {
            "" => String::from("not set"),
            default => format!("`{default}`"),
        };
        page += &format!("\n## {}\n\n", setting.variable);
        page += &paragraph(&escape(setting.help));
        page += "\n";
        page += &item(&format!("Default: {default}"));
        page += &item(&format!("Allowed: {}", escape(setting.allowed)));
    }
    page
}
