//! Writes man pages and shell completions for `make install`, where systems look for them below `PREFIX/share`.

use super::write;
use clap::Command;
use clap_complete::{Shell, generate};
use std::path::Path;
use weir_output::Failure;

/// The file in which each shell looks for the completion of `weir`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/weir"),
    (Shell::Zsh, "zsh/site-functions/_weir"),
    (Shell::Fish, "fish/vendor_completions.d/weir.fish"),
];

/// Writes all of them below `share`. `command` is not built yet.
///
/// # Errors
/// [`Failure::System`].
pub fn write_all(command: &Command, share: &Path) -> Result<(), Failure> {
    let manuals = share.join("man/man1");
    std::fs::create_dir_all(&manuals)
        .and_then(|()| clap_mangen::generate_to(command.clone(), &manuals))
        .map_err(Failure::system(manuals.display().to_string()))?;
    for (shell, place) in COMPLETIONS {
        let mut text = Vec::new();
        generate(shell, &mut visible(command), "weir", &mut text);
        write(&share.join(place), &text)?;
    }
    Ok(())
}

/// The same commands and options without the hidden commands: clap_complete offers those too.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let mut visible = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .args(command.get_arguments().cloned())
        .subcommands(subcommands.map(self::visible));
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    match command.get_version() {
        Some(version) => visible.version(version.to_owned()),
        None => visible,
    }
}
