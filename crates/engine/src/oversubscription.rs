//! How many cores the ranks of a job share on this node: those that their launcher may use, which is more than a rank sees that is bound.
//!
//! A rank with a core to itself may spin, one of many on a core must give it away, and what a rank may run on does not tell the two apart: two ranks that
//! Open MPI or Slurm binds to a core each see one core, and so do eight that Intel MPI binds to two. The daemon that started
//! them is not bound. It is the first of our ancestors that has not our rank in its environment; those between, scripts around the
//! program for example, have.
//!
//! ```text
//! rank 1   PMI_RANK=1   cores 1       sh -c   PMI_RANK=1   cores 1       hydra_pmi_proxy   cores 0,1     two cores for all ranks
//! ```

use std::path::Path;

/// Where launchers and process managers tell a process its rank: PMI-1 and PMI-2 (MPICH, Intel MPI), PMIx, Open MPI, Slurm, PALS, MVAPICH2.
const RANK_VARIABLES: [&str; 6] =
    ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID", "MV2_COMM_WORLD_RANK"];
/// Where they tell it how many ranks there are on this node, or at all: of one of them all ranks are on this node as long as links are.
const RANK_COUNT_VARIABLES: [&str; 3] = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE"];
/// Ancestors that are looked at.
const MAX_ANCESTORS: usize = 16;

/// Cores that the ranks of this job share on this node, as far as is known, at least 1.
fn shared_cores() -> usize {
    let own = weir_link::cores::available();
    let rank = RANK_VARIABLES.iter().find_map(|&name| Some((name, std::env::var(name).ok()?)));
    let Some((name, value)) = rank else { return own };
    let parent = std::os::unix::process::parent_id();
    own.max(launcher_cores(Path::new("/proc"), parent, &format!("{name}={value}")).unwrap_or(1))
}

/// Whether the ranks of this node outnumber its cores, as far as their launcher tells how many there are.
pub fn is_oversubscribed() -> bool {
    let count = RANK_COUNT_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    count.is_some_and(is_oversubscribed_by)
}

/// Whether so many ranks share fewer cores.
pub fn is_oversubscribed_by(ranks: usize) -> bool {
    ranks > weir_link::cores::available() && ranks > shared_cores()
}

/// Cores of the first ancestor of ours, from `pid` on, without `rank` in its environment. `None`: nobody is found, or not to be read.
fn launcher_cores(processes: &Path, mut pid: u32, rank: &str) -> Option<usize> {
    for _ in 0..MAX_ANCESTORS {
        let process = processes.join(pid.to_string());
        let status = std::fs::read_to_string(process.join("status")).ok()?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // What we may not read is most often another user's, a daemon of Slurm for example, and not a script of ours.
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        if !environment.split(|&byte| byte == 0).any(|variable| variable == rank.as_bytes()) {
            return weir_link::cores::count(line("Cpus_allowed_list:")?);
        }
        pid = line("PPid:")?.parse().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: &str = "PMI_RANK=1";

    /// Processes as (number, parent, environment, cores).
    fn found(processes: &[(u32, u32, &str, &str)], parent: u32) -> Option<usize> {
        let root = tempfile::tempdir().unwrap();
        for (pid, parent, environment, cores) in processes {
            let process = root.path().join(pid.to_string());
            std::fs::create_dir(&process).unwrap();
            let status =
                format!("Name:\tx\nPPid:\t{parent}\nCpus_allowed:\tff\nCpus_allowed_list:\t{cores}\n");
            std::fs::write(process.join("status"), status).unwrap();
            std::fs::write(process.join("environ"), environment.replace(' ', "\0")).unwrap();
        }
        launcher_cores(root.path(), parent, RANK)
    }

    const PROXY: (u32, u32, &str, &str) = (10, 9, "HOME=/root PMI_SIZE=2 ", "0-3,8,10-11");

    #[test]
    fn the_launcher_daemon_gives_the_cores_not_wrapper_scripts() {
        assert_eq!(found(&[PROXY], 10), Some(7));
        let script = (11, 10, "PMI_RANK=1 HOME=/root ", "1");
        let shell = (12, 11, "HOME=/root PMI_RANK=1 ", "1");
        assert_eq!(found(&[PROXY, script, shell], 12), Some(7));
    }

    #[test]
    fn a_nested_launcher_is_recognised_by_its_rank_variable() {
        let other = (10, 8, "PMI_RANK=3 ", "0-1");
        assert_eq!(found(&[other], 10), Some(2));
        let (inner, outer) = ((10, 8, "PMI_RANK=1 ", "0"), (8, 7, "HOME=/ ", "0-3"));
        assert_eq!(found(&[inner, outer], 10), Some(4));
    }

    #[test]
    fn an_unreadable_process_gives_no_cores() {
        assert_eq!(found(&[], 10), None);
        assert_eq!(found(&[(10, 9, "PMI_RANK=1 ", "0")], 10), None); // its parent is gone
        assert_eq!(found(&[(10, 10, "PMI_RANK=1 ", "0")], 10), None); // no end
        assert_eq!(found(&[(10, 9, "", "")], 10), None);
        assert_eq!(found(&[(10, 9, "", "3-1")], 10), None);
    }

    #[test]
    fn as_many_ranks_as_cores_are_not_oversubscribed() {
        assert!(!is_oversubscribed_by(weir_link::cores::available()));
        assert!(is_oversubscribed_by(1 << 20));
    }
}
