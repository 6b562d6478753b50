//! Which communicators across hosts have groups (`FI_WEIR_COLLECTIVES_ACROSS`).

/// Communicators across hosts whose collective operations go through node groups and one rank of each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AcrossHosts {
    /// None.
    Never,
    /// Those with several ranks on one of their hosts. With one rank on each host, messages cost as much.
    WhereShared,
    /// All.
    Always,
}

impl AcrossHosts {
    /// The names.
    pub(super) const WORDS: [(&str, AcrossHosts); 3] =
        [("0", AcrossHosts::Never), ("auto", AcrossHosts::WhereShared), ("1", AcrossHosts::Always)];

    /// The name.
    pub fn word(self) -> &'static str {
        AcrossHosts::WORDS.iter().find(|(_, which)| *which == self).map_or("", |(word, _)| word)
    }

    /// Whether a communicator has a group, by the node of each of its ranks.
    pub fn takes(self, nodes: &[u64]) -> bool {
        let is_shared = || {
            let mut sorted = nodes.to_vec();
            sorted.sort_unstable();
            sorted.windows(2).any(|pair| pair[0] == pair[1])
        };
        match self {
            AcrossHosts::Never => false,
            AcrossHosts::WhereShared => is_shared(),
            AcrossHosts::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_have_a_group_by_the_ranks_that_share_a_host() {
        for (which, alone, shared) in [
            (AcrossHosts::Never, false, false),
            (AcrossHosts::WhereShared, false, true),
            (AcrossHosts::Always, true, true),
        ] {
            assert_eq!((which.takes(&[3, 1, 2]), which.takes(&[3, 1, 3])), (alone, shared), "{which:?}");
        }
    }
}
