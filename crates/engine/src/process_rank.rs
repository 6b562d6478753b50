//! The rank of a process, as its launcher has told it. Counter pages, traces and warnings name it.

/// The rank of this process.
pub(crate) fn own_rank() -> Option<u64> {
    rank_from(|variable| std::env::var(variable).ok())
}

/// The rank of another process of this user, from the environment that it was started with.
pub(crate) fn rank_of_process(pid: u32) -> Option<u64> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&environment);
    rank_from(|variable| {
        let value = text.split('\0').find_map(|entry| entry.strip_prefix(variable)?.strip_prefix('='));
        value.map(str::to_owned)
    })
}

/// The rank that the launcher has set: MPICH's and Intel's hydra, Open MPI's, and any that supports PMIx.
fn rank_from(lookup: impl Fn(&str) -> Option<String>) -> Option<u64> {
    ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"]
        .iter()
        .find_map(|variable| lookup(variable)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_read_from_the_variables_of_each_launcher() {
        let from = |variable: &'static str, value: &'static str| {
            rank_from(move |asked| (asked == variable).then(|| value.to_owned()))
        };
        assert_eq!(from("PMI_RANK", "3"), Some(3));
        assert_eq!(from("OMPI_COMM_WORLD_RANK", "4"), Some(4));
        assert_eq!(from("PMIX_RANK", "0"), Some(0));
        assert_eq!(from("PMI_RANK", "none"), None);
        assert_eq!(from("RANK", "1"), None);
    }
}
