//! How a launcher starts the ranks of a job elsewhere than on this host ([`Launcher`]).

/// How a launcher starts the ranks of a job elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launcher {
    /// What comes before the launcher.
    pub inside: Vec<String>,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables of the launcher.
    pub variables: Vec<(&'static str, String)>,
}
