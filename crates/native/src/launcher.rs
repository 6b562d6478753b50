//! Rank and number of ranks of this process, as its launcher says them in environment variables.
//!
//! A launcher has a pair of variables. A pair counts only whole, since a launcher inside the job of another one may
//! have left half of the other's.

use crate::Error;

/// Pairs of variables, rank and number of ranks: our own, PMI-1 and PMI-2 (MPICH, Intel MPI), Open MPI, Slurm,
/// MVAPICH2.
const PAIRS: [(&str, &str); 5] = [
    ("WEIR_RANK", "WEIR_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
];

/// The rank and the number of ranks.
///
/// # Errors
/// No pair of variables is set, or the first one that is set makes no sense.
pub(crate) fn rank_and_size(lookup: impl Fn(&str) -> Option<String>) -> Result<(u32, u32), Error> {
    let pair = PAIRS.iter().find_map(|&(rank, size)| Some((rank, lookup(rank)?, size, lookup(size)?)));
    let Some((rank_name, rank, size_name, size)) = pair else {
        let names: Vec<String> = PAIRS.iter().map(|(rank, size)| format!("{rank} and {size}")).collect();
        return Err(Error::argument(
            "rank and size",
            "not given",
            format!("values of the options, or of a launcher: {}", names.join("; ")),
        ));
    };
    match (rank.parse::<u32>(), size.parse::<u32>()) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Error::argument(
            "launcher's variables",
            format!("{rank_name}={rank} and {size_name}={size}"),
            "a number of ranks, and a rank below it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<(u32, u32), Error> {
        rank_and_size(|wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_whole_pair_counts_and_our_own_comes_first() {
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        assert_eq!(found(&hydra).unwrap(), (1, 4));
        let both = [("WEIR_RANK", "0"), ("WEIR_SIZE", "2"), hydra[0], hydra[1]];
        assert_eq!(found(&both).unwrap(), (0, 2));
        let half = [("WEIR_RANK", "0"), hydra[0], hydra[1]];
        assert_eq!(found(&half).unwrap(), (1, 4), "half a pair");
    }

    #[test]
    fn errors_name_the_variables_and_their_values() {
        let none = found(&[]).unwrap_err().to_string();
        assert!(none.contains("WEIR_RANK and WEIR_SIZE"), "{none}");
        for (rank, size) in [("4", "4"), ("x", "4"), ("0", "0"), ("-1", "2")] {
            let error = found(&[("PMI_RANK", rank), ("PMI_SIZE", size)]).unwrap_err().to_string();
            assert!(error.contains(&format!("PMI_RANK={rank} and PMI_SIZE={size}")), "{error}");
        }
    }
}
