//! Reads what the launcher of this process has started: the number of ranks, the cores that they share, and the job to
//! which they belong ([`JobKey`]).
//!
//! Launchers say the number of ranks in environment variables. The cores and the job are those of the launcher's
//! process. That is mostly our first ancestor without our rank in its environment; scripts around the program have the
//! rank. If no launcher can be seen, variables of its allocation identify the job.
//!
//! ```text
//! rank 1   PMI_RANK=1   cores 1       sh -c   PMI_RANK=1   cores 1       hydra_pmi_proxy   cores 0,1       mpiexec
//! two cores for all ranks; the job is that of this mpiexec
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_link::shm::node_segment::JobKey;

/// Variables that hold a process's rank: PMI-1 and PMI-2 (MPICH, Intel MPI), PMIx, Open MPI, Slurm, PALS, MVAPICH2.
const RANK_VARIABLES: [&str; 6] =
    ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID", "MV2_COMM_WORLD_RANK"];
/// Variables that hold the number of ranks on this node: MPICH and Intel MPI, Open MPI, MVAPICH2.
const NODE_RANKS_VARIABLES: [&str; 3] = ["MPI_LOCALNRANKS", OPEN_MPI_NODE_RANKS, "MV2_COMM_WORLD_LOCAL_SIZE"];
/// Variables that hold the number of ranks of the job: MPICH and Intel MPI, Open MPI, Slurm, MVAPICH2.
const JOB_RANKS_VARIABLES: [&str; 4] =
    [HYDRA_JOB_RANKS, OPEN_MPI_JOB_RANKS, "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE"];
/// Of these, that of MPICH and Intel MPI, and those of Open MPI.
const HYDRA_JOB_RANKS: &str = "PMI_SIZE";
const OPEN_MPI_JOB_RANKS: &str = "OMPI_COMM_WORLD_SIZE";
const OPEN_MPI_NODE_RANKS: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
const SLURM_NODES: &str = "SLURM_STEP_NUM_NODES";
/// Variables that name a job. Together with the launcher's process they identify it. Jobs of one PMIx server differ in
/// the namespace only.
const JOB_NAME_VARIABLES: [&str; 1] = ["PMIX_NAMESPACE"];
/// Variables that name a job, for ranks that cannot see their launcher. Where they can see it, it is better: several
/// launchers may run in one allocation.
const ALLOCATION_VARIABLES: [&str; 4] = ["PMI_JOBID", "SLURM_STEP_ID", "PALS_APID", "SLURM_JOB_ID"];
/// So many of these name one launch. The rest is only part of a name.
const LAUNCH_VARIABLES: usize = 3;
/// Most ancestors that are searched.
const MAX_ANCESTORS: usize = 16;
/// The process of the launcher of MPICH and Intel MPI that starts the ranks of a node, as `Name` shows it. Then the
/// beginnings of the names of those above it, if they are on this node too: others of its kind, and the launcher itself.
const HYDRA_PROXY: &str = "hydra_pmi_proxy";
const HYDRA_HELPER: &str = "hydra_";
const HYDRA: [&str; 2] = ["mpiexec", "mpirun"];

/// Looks up an environment variable.
pub trait Lookup: Fn(&str) -> Option<String> {}
impl<F: Fn(&str) -> Option<String>> Lookup for F {}

/// The environment of this process.
pub fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

fn first_number(variables: &[&str], lookup: &impl Lookup) -> Option<u32> {
    variables.iter().find_map(|name| lookup(name)?.parse().ok().filter(|&number| number > 0))
}

/// Ranks of the job on this node, if the launcher says so.
pub fn ranks_of_node(lookup: &impl Lookup) -> Option<u32> {
    first_number(&NODE_RANKS_VARIABLES, lookup)
}

/// Ranks of the job, if the launcher says so.
pub fn ranks_of_job(lookup: &impl Lookup) -> Option<u32> {
    first_number(&JOB_RANKS_VARIABLES, lookup)
}

/// Nodes of the job, if the launcher is Slurm's.
pub fn nodes_of_slurm_step(lookup: &impl Lookup) -> Option<u32> {
    first_number(&[SLURM_NODES], lookup)
}

/// Ranks of the job, if the launcher is that of MPICH or Intel MPI.
pub fn ranks_of_hydra_job(lookup: &impl Lookup) -> Option<u32> {
    first_number(&[HYDRA_JOB_RANKS], lookup)
}

/// Ranks of the job on this node, if the launcher is Open MPI's.
pub fn ranks_of_open_mpi_node(lookup: &impl Lookup) -> Option<u32> {
    first_number(&[OPEN_MPI_NODE_RANKS], lookup)
}

/// Ranks of the job, if the launcher is Open MPI's. Its programs announce the slots of their allocation to libfabric, not
/// their ranks.
pub fn ranks_of_open_mpi_job(lookup: &impl Lookup) -> Option<u32> {
    first_number(&[OPEN_MPI_JOB_RANKS], lookup)
}

/// A process of the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    /// The cores that it may use.
    cores: Option<usize>,
}

impl Process {
    /// The process `pid` below `processes`, which is `/proc`.
    fn read(processes: &Path, pid: u32) -> Option<Process> {
        let status = std::fs::read_to_string(processes.join(pid.to_string()).join("status")).ok()?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some(Process {
            pid,
            parent: line("PPid:")?.parse().ok()?,
            name: line("Name:").unwrap_or_default().to_owned(),
            cores: line("Cpus_allowed_list:").and_then(weir_link::cores::count),
        })
    }

    /// The time when it started. Unit: ticks since the host started. Process ids are used again.
    fn started(&self, processes: &Path) -> Option<u64> {
        let stat = std::fs::read_to_string(processes.join(self.pid.to_string()).join("stat")).ok()?;
        // The name, in parentheses, may contain anything. The start is the 22nd field, the 20th behind the name.
        stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
    }
}

/// The process of the launcher that starts the ranks of this node: the first ancestor, from `pid` on, without `rank` in
/// its environment. `None`: no such ancestor can be read.
fn node_daemon(processes: &Path, mut pid: u32, rank: &str) -> Option<Process> {
    for _ in 0..MAX_ANCESTORS {
        let process = Process::read(processes, pid)?;
        // A process that we may not read belongs to another user, for example a daemon of Slurm. It is no script of
        // ours.
        let environment = std::fs::read(processes.join(pid.to_string()).join("environ")).unwrap_or_default();
        // The launcher of a job inside a job may have our rank in its environment, as a rank of the outer job.
        if process.name == HYDRA_PROXY
            || !environment.split(|&byte| byte == 0).any(|variable| variable == rank.as_bytes())
        {
            return Some(process);
        }
        pid = process.parent;
    }
    None
}

/// The rank of this process as its variable says it. `None`: no launcher has started it.
fn own_rank(lookup: &impl Lookup) -> Option<String> {
    RANK_VARIABLES.iter().find_map(|&name| Some(format!("{name}={}", lookup(name)?)))
}

/// Whether a launcher has started this process.
pub(crate) fn has_started_us() -> bool {
    own_rank(&environment).is_some()
}

/// Cores that all ranks of this node share, as far as is known. `None`: no launcher is known.
pub(crate) fn shared_cores() -> Option<usize> {
    let parent = std::os::unix::process::parent_id();
    let daemon = node_daemon(Path::new("/proc"), parent, &own_rank(&environment)?);
    Some(daemon.and_then(|daemon| daemon.cores).unwrap_or(1))
}

/// The key of this job on this node. `None`: no launcher is known, or nothing identifies its job.
pub(crate) fn job_key() -> Option<JobKey> {
    job_key_below(Path::new("/proc"), std::os::unix::process::parent_id(), &environment)
}

/// The launcher process of all ranks, if `daemon` is a proxy of MPICH's or Intel MPI's launcher on this node. A launcher
/// starts one proxy for each host name and for each group of spawned ranks.
fn hydra_of(processes: &Path, daemon: Process) -> Process {
    let mut highest = daemon;
    while highest.name.starts_with(HYDRA_HELPER) {
        let above = Process::read(processes, highest.parent);
        let is_hydra = |above: &Process| {
            above.name.starts_with(HYDRA_HELPER) || HYDRA.iter().any(|name| above.name.starts_with(name))
        };
        match above.filter(|above| is_hydra(above) && above.pid != highest.pid) {
            Some(above) => highest = above,
            None => break,
        }
    }
    highest
}

fn job_key_below(processes: &Path, parent: u32, lookup: &impl Lookup) -> Option<JobKey> {
    let rank = own_rank(lookup)?;
    let launcher = node_daemon(processes, parent, &rank).and_then(|daemon| {
        let launcher = hydra_of(processes, daemon);
        Some((launcher.pid, launcher.started(processes)?))
    });
    let named =
        |variables: &[&str]| -> Vec<Option<String>> { variables.iter().map(|name| lookup(name)).collect() };
    let names = named(&JOB_NAME_VARIABLES);
    if launcher.is_some() || names.iter().any(Option::is_some) {
        // Processes in other containers may have the same numbers.
        let pid_namespace = std::fs::metadata(processes.join("self/ns/pid")).map_or(0, |space| space.ino());
        return Some(JobKey::new(&(launcher.map(|launcher| (launcher, pid_namespace)), names)));
    }
    let allocation = named(&ALLOCATION_VARIABLES);
    allocation[..LAUNCH_VARIABLES].iter().any(Option::is_some).then(|| JobKey::new(&allocation))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: &str = "PMI_RANK=1";

    /// A process as (number, parent, name, environment, cores).
    type Described = (u32, u32, &'static str, &'static str, &'static str);

    fn described(processes: &[Described]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, parent, name, environment, cores) in processes {
            let process = root.path().join(pid.to_string());
            std::fs::create_dir(&process).unwrap();
            let status =
                format!("Name:\t{name}\nPPid:\t{parent}\nCpus_allowed:\tff\nCpus_allowed_list:\t{cores}\n");
            std::fs::write(process.join("status"), status).unwrap();
            std::fs::write(process.join("environ"), environment.replace(' ', "\0")).unwrap();
            let fields = (3..22).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
            std::fs::write(process.join("stat"), format!("{pid} (a) b) {fields} {pid}77 23")).unwrap();
        }
        root
    }

    fn cores_found(processes: &[Described], parent: u32) -> Option<usize> {
        node_daemon(described(processes).path(), parent, RANK)?.cores
    }

    const PROXY: Described = (10, 9, "hydra_pmi_proxy", "HOME=/root PMI_SIZE=2 ", "0-3,8,10-11");

    #[test]
    fn the_launcher_daemon_gives_the_cores_not_wrapper_scripts() {
        assert_eq!(cores_found(&[PROXY], 10), Some(7));
        let script = (11, 10, "sh", "PMI_RANK=1 HOME=/root ", "1");
        let shell = (12, 11, "sh", "HOME=/root PMI_RANK=1 ", "1");
        assert_eq!(cores_found(&[PROXY, script, shell], 12), Some(7));
    }

    #[test]
    fn a_nested_launcher_is_recognised_by_its_rank_variable() {
        let other = (10, 8, "x", "PMI_RANK=3 ", "0-1");
        assert_eq!(cores_found(&[other], 10), Some(2));
        let (inner, outer) = ((10, 8, "x", "PMI_RANK=1 ", "0"), (8, 7, "x", "HOME=/ ", "0-3"));
        assert_eq!(cores_found(&[inner, outer], 10), Some(4));
        // A rank of the outer job with the same number has started this proxy.
        assert_eq!(cores_found(&[(10, 8, HYDRA_PROXY, "PMI_RANK=1 ", "0"), outer], 10), Some(1));
    }

    #[test]
    fn an_unreadable_process_gives_no_cores() {
        assert_eq!(cores_found(&[], 10), None);
        assert_eq!(cores_found(&[(10, 9, "x", "PMI_RANK=1 ", "0")], 10), None); // its parent has ended
        assert_eq!(cores_found(&[(10, 10, "x", "PMI_RANK=1 ", "0")], 10), None); // its own parent: no end
        assert_eq!(cores_found(&[(10, 9, "x", "", "")], 10), None);
        assert_eq!(cores_found(&[(10, 9, "x", "", "3-1")], 10), None);
    }

    /// The key of a rank of `parent` with these variables.
    fn key(processes: &[Described], parent: u32, variables: &[(&str, &str)]) -> Option<JobKey> {
        job_key_below(described(processes).path(), parent, &|wanted: &str| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn all_ranks_of_a_launcher_have_the_same_key() {
        let rank = |number| [("PMI_RANK", number)];
        let launcher = (9, 1, "mpiexec.hydra", "HOME=/ ", "0-3");
        let (first, second) = (PROXY, (20, 9, "hydra_pmi_proxy", "HOME=/ ", "0-3"));
        let tree = [launcher, first, second, (21, 20, "sh", "PMI_RANK=1 ", "0")];
        let of = |parent, number| key(&tree, parent, &rank(number)).expect("a key");
        assert_eq!(of(10, "0"), of(20, "3"), "two proxies of one launcher");
        assert_eq!(of(10, "0"), of(21, "1"), "a script");
        // A proxy whose launcher is on another node, and another launcher.
        let remote = [(9, 1, "sshd", "", "0"), PROXY];
        assert_ne!(key(&remote, 10, &rank("0")), Some(of(10, "0")));
        assert_eq!(key(&remote, 10, &rank("0")), key(&remote, 10, &rank("1")));
        // MPICH's mpirun, and the processes of Intel MPI.
        let [under_mpirun, of_intel] = [("mpirun", "hydra_pmi_proxy"), ("mpiexec.hydra", "hydra_bstrap_pr")]
            .map(|(top, middle)| {
                [
                    (7, 1, top, "", "0"),
                    (8, 7, middle, "", "0"),
                    (10, 8, HYDRA_PROXY, "", "0"),
                    (20, 8, HYDRA_PROXY, "", "0"),
                ]
            });
        for tree in [under_mpirun, of_intel] {
            assert_eq!(key(&tree, 10, &rank("0")), key(&tree, 20, &rank("1")));
        }
        let other = [(30, 1, "prterun", "HOME=/ ", "0-3")];
        assert_ne!(key(&other, 30, &rank("0")), Some(of(10, "0")));
    }

    #[test]
    fn jobs_of_one_server_differ_by_their_namespace() {
        let tree = [(9, 1, "prted", "", "0-3")];
        let of = |space| key(&tree, 9, &[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", space)]);
        assert!(of("prte-host-9@1").is_some());
        assert_ne!(of("prte-host-9@1"), of("prte-host-9@2"));
    }

    #[test]
    fn ranks_without_a_visible_launcher_have_the_key_of_their_allocation() {
        let step = |id| [("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "17"), ("SLURM_STEP_ID", id)];
        assert_eq!(key(&[], 9, &step("0")), key(&[], 8, &step("0")));
        assert_ne!(key(&[], 9, &step("0")), key(&[], 9, &step("1")));
        assert_eq!(key(&[], 9, &[("PMI_RANK", "0")]), None, "nothing identifies the job");
        let allocation = [("PMI_RANK", "0"), ("SLURM_JOB_ID", "17")];
        assert_eq!(key(&[], 9, &allocation), None, "several launchers may run in the allocation");
        assert_eq!(key(&[PROXY], 10, &step("0")[1..]), None, "no launcher has started this process");
    }

    #[test]
    fn launchers_say_the_ranks_of_node_and_job() {
        let counts = |variables: &'static [(&str, &str)]| {
            let lookup = move |wanted: &str| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            };
            (ranks_of_node(&lookup), ranks_of_job(&lookup), ranks_of_open_mpi_job(&lookup))
        };
        assert_eq!(counts(&[("MPI_LOCALNRANKS", "2"), ("PMI_SIZE", "4")]), (Some(2), Some(4), None));
        let open_mpi = [("OMPI_COMM_WORLD_LOCAL_SIZE", "3"), ("OMPI_COMM_WORLD_SIZE", "6")];
        let leaked: &'static [(&str, &str)] = Box::leak(Box::new(open_mpi));
        assert_eq!(counts(leaked), (Some(3), Some(6), Some(6)));
        assert_eq!(counts(&[("PMI_SIZE", "many"), ("MPI_LOCALNRANKS", "0")]), (None, None, None));
        assert_eq!(counts(&[("MPI_LOCALNRANKS", "0"), ("MV2_COMM_WORLD_LOCAL_SIZE", "3")]).0, Some(3));
    }
}
