//! Oversubscription: whether a job has more ranks than cores on this node.
//!
//! A rank with a core to itself may spin; ranks that share a core must yield it. The cores that a rank itself may use
//! do not distinguish the two. Two ranks that Open MPI or Slurm binds to a core each see one core. So do eight ranks
//! that Intel MPI binds to two cores.
//!
//! The launcher's daemon is not bound, so its cores count. It is our first ancestor without our rank in its
//! environment; scripts around the program have it.
//!
//! ```text
//! rank 1   PMI_RANK=1   cores 1       sh -c   PMI_RANK=1   cores 1       hydra_pmi_proxy   cores 0,1
//! two cores for all ranks
//! ```

use std::path::Path;

/// Variables that hold a process's rank: PMI-1 and PMI-2 (MPICH, Intel MPI), PMIx, Open MPI, Slurm, PALS, MVAPICH2.
const RANK_VARIABLES: [&str; 6] =
    ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID", "MV2_COMM_WORLD_RANK"];
/// Variables that hold the number of ranks on this node, or of the job. All ranks are on this node with shared memory.
const RANK_COUNT_VARIABLES: [&str; 3] = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE"];
/// Most ancestors that are searched.
const MAX_ANCESTORS: usize = 16;

/// Cores that the ranks of this job share on this node, as far as is known, at least 1.
fn shared_cores() -> usize {
    let own = weir_link::cores::available();
    let rank = RANK_VARIABLES.iter().find_map(|&name| Some((name, std::env::var(name).ok()?)));
    let Some((name, value)) = rank else { return own };
    let parent = std::os::unix::process::parent_id();
    own.max(launcher_cores(Path::new("/proc"), parent, &format!("{name}={value}")).unwrap_or(1))
}

/// Whether this node has more ranks than cores, if the launcher's variables say how many ranks there are.
pub fn is_oversubscribed() -> bool {
    let count = RANK_COUNT_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    count.is_some_and(is_oversubscribed_by)
}

/// Whether `ranks` ranks share fewer cores.
pub fn is_oversubscribed_by(ranks: usize) -> bool {
    ranks > weir_link::cores::available() && ranks > shared_cores()
}

/// Cores of the first ancestor, from `pid` on, without `rank` in its environment. `None`: no such ancestor can be read.
fn launcher_cores(processes: &Path, mut pid: u32, rank: &str) -> Option<usize> {
    for _ in 0..MAX_ANCESTORS {
        let process = processes.join(pid.to_string());
        let status = std::fs::read_to_string(process.join("status")).ok()?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // A process that we may not read belongs to another user, for example a daemon of Slurm. It is no script of
        // ours.
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
        assert_eq!(found(&[(10, 9, "PMI_RANK=1 ", "0")], 10), None); // its parent has ended
        assert_eq!(found(&[(10, 10, "PMI_RANK=1 ", "0")], 10), None); // its own parent: no end
        assert_eq!(found(&[(10, 9, "", "")], 10), None);
        assert_eq!(found(&[(10, 9, "", "3-1")], 10), None);
    }

    #[test]
    fn as_many_ranks_as_cores_are_not_oversubscribed() {
        assert!(!is_oversubscribed_by(weir_link::cores::available()));
        assert!(is_oversubscribed_by(1 << 20));
    }
}
