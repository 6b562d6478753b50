//! Node and job: counts the ranks on this node and in the job, and joins the node segment, where it also notes the core
//! of an endpoint that is awake. Shares of cores and memory follow from these counts.
//!
//! The launcher says how many ranks it has started on this node. More may come later, or under another name of the
//! host. The node segment counts those too, while they run. The larger count holds. Plans are made before, for
//! [`Ranks::near`].
//! ```text
//! mpiexec -hosts a,b -n 4     both names mean this node: each launcher process starts 2 ranks    node 2, job 4
//! rank 0 joins                census: 1 process                                                   node 2
//! rank 3 joins                census: 4 processes, at the next look                               node 4
//! ranks 2 and 3 end           census: 2 processes, at the next look                               node 2
//! ```

use crate::launcher::{self, Lookup};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeHandle, NodeSegment, NodeSegmentError};

/// Numbers of ranks. 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// Ranks of the job on this node.
    pub node: u32,
    /// Ranks of the job.
    pub job: u32,
}

impl Ranks {
    /// Ranks that may send to a mailbox.
    pub fn senders(self) -> u32 {
        self.node.max(self.job)
    }

    /// Ranks that may share this node's cores and memory. The launcher may know this node under several names. So they are
    /// all ranks of the job, unless the endpoint has a network to other nodes.
    pub fn near(self, has_network: bool) -> u32 {
        if has_network { self.node } else { self.senders() }
    }
}

/// The job of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    ranks: Ranks,
    /// `None`: the endpoint has no node segment.
    key: Option<JobKey>,
    /// It may have ranks on other nodes.
    spans_nodes: bool,
    /// Its endpoints have a network beside shared memory.
    pub(crate) has_network: bool,
}

impl From<u32> for Job {
    /// A job of `ranks` ranks (0: not known), all on this node, without a node segment.
    fn from(ranks: u32) -> Job {
        let ranks = Ranks { node: ranks, job: ranks };
        Job { ranks, key: None, spans_nodes: false, has_network: false }
    }
}

impl Job {
    /// The job that the launcher of this process has started. The program expects `expected` endpoints (0: not known).
    pub fn of_launcher(expected: u32) -> Job {
        let lookup = &launcher::environment;
        let ranks = ranks(expected, lookup);
        Job { ranks, key: launcher::job_key(), spans_nodes: spans_nodes(ranks, lookup), has_network: false }
    }

    /// A job whose ranks have told each other where they are, with a key that no other job has.
    pub fn known(ranks: Ranks, key: JobKey) -> Job {
        Job { ranks, key: Some(key), spans_nodes: ranks.node < ranks.job, has_network: false }
    }

    /// Whether it may have ranks on other nodes, as far as the launcher says.
    pub fn spans_nodes(&self) -> bool {
        self.spans_nodes
    }

    /// Ranks that may share this node's cores and memory.
    pub(crate) fn near_ranks(&self) -> u32 {
        self.ranks.near(self.has_network)
    }

    /// The same job, in a node segment with this key.
    pub fn with_key(self, key: JobKey) -> Job {
        Job { key: Some(key), ..self }
    }

    /// Its ranks.
    pub fn ranks(&self) -> Ranks {
        self.ranks
    }
}

fn ranks(expected: u32, lookup: &impl Lookup) -> Ranks {
    let announced = Some(expected).filter(|&expected| expected > 0);
    // A job that a rank of another launcher has started may inherit that launcher's variables. The number that
    // the program announces shows whose variables are meant.
    let is_hydra = announced.is_some() && launcher::ranks_of_hydra_job(lookup) == announced;
    if let Some(job) = launcher::ranks_of_open_mpi_job(lookup).filter(|_| !is_hydra) {
        let node = launcher::ranks_of_open_mpi_node(lookup).filter(|&node| node < job).unwrap_or(job);
        return Ranks { node, job };
    }
    let job = announced.or_else(|| launcher::ranks_of_job(lookup)).unwrap_or(0);
    // A program that expects fewer endpoints than the launcher has started ranks shares its mailbox among those only.
    let node = launcher::ranks_of_node(lookup).filter(|&node| job == 0 || node < job).unwrap_or(job);
    Ranks { node, job }
}

fn spans_nodes(ranks: Ranks, lookup: &impl Lookup) -> bool {
    // Slurm's own launcher says how many nodes it uses, but not how many ranks are on this one.
    let of_slurm =
        launcher::ranks_of_node(lookup).is_none() && launcher::nodes_of_slurm_step(lookup) > Some(1);
    ranks.job > 1 && (ranks.node < ranks.job || of_slurm)
}

/// The ranks of an endpoint's job, and its membership in their node segment.
#[derive(Debug, Default)]
pub(crate) struct NodeView {
    pub ranks: Ranks,
    /// The ranks that the launcher has started, as far as it has said so.
    pub launched: Ranks,
    /// The endpoint has a network.
    pub has_network: bool,
    segment: Option<NodeSegment>,
    /// The core of the last look.
    core: Option<u32>,
}

impl NodeView {
    /// Ranks that need not meet.
    pub fn without_segment(job: &Job) -> NodeView {
        let &Job { ranks, has_network, .. } = job;
        NodeView { ranks, launched: ranks, has_network, ..NodeView::default() }
    }

    /// Ranks that share this node's cores, as far as the launcher has said so.
    pub fn launched_near(&self) -> u32 {
        self.launched.near(self.has_network)
    }

    /// Joins the node segment of `job`, in the directory of the mailbox of `link`. Without one, the launcher's counts
    /// remain. The second value says why there is none.
    pub fn join(link: &ShmLink, job: &Job) -> (NodeView, Option<NodeSegmentError>) {
        let mut view = NodeView::without_segment(job);
        let error = match job.key.map(|key| NodeSegment::join(link, key)) {
            Some(Ok(segment)) => {
                view.segment = Some(segment);
                view.look();
                None
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        (view, error)
    }

    /// The node segment, for links.
    pub fn handle(&self) -> Option<NodeHandle> {
        self.segment.as_ref().map(NodeSegment::handle)
    }

    /// Notes the core, and counts the ranks if some have come or gone. Returns whether the numbers have changed.
    pub fn look(&mut self) -> bool {
        let Some(segment) = &mut self.segment else { return false };
        self.core = weir_link::cores::current();
        segment.set_core(self.core);
        let Ranks { node, job } = self.launched;
        let Some(census) = segment.changed_census(self.ranks.node, node) else { return false };
        let node = node.max(census.processes);
        let ranks = Ranks { node, job: job.max(node) };
        std::mem::replace(&mut self.ranks, ranks) != ranks
    }

    /// The endpoint falls asleep.
    pub fn sleeps(&self) {
        if let Some(segment) = &self.segment {
            segment.set_core(None);
        }
    }

    /// The endpoint is awake again.
    pub fn wakes(&self) {
        if let Some(segment) = &self.segment {
            segment.set_core(self.core);
        }
    }

    /// Leaves the node segment. The mailbox must still be open.
    pub fn leave(&mut self) {
        self.segment = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::config::Settings;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn launcher_and_program_together_give_the_ranks() {
        let given = |expected, variables: &[(&str, &str)]| {
            let Ranks { node, job } = ranks(expected, &|wanted: &str| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            });
            (node, job)
        };
        assert_eq!(given(0, &[]), (0, 0));
        assert_eq!(given(8, &[]), (8, 8), "all ranks are on this node if nobody says otherwise");
        let hydra = [("MPI_LOCALNRANKS", "2"), ("PMI_SIZE", "6")];
        assert_eq!(given(6, &hydra), (2, 6));
        let ranks = Ranks { node: 2, job: 6 };
        assert_eq!(ranks.near(false), 6, "the other names may mean this node");
        assert_eq!((ranks.near(true), ranks.senders()), (2, 6));
        assert_eq!(given(0, &hydra), (2, 6), "a program that announces no number");
        assert_eq!(given(1, &hydra), (1, 1), "a program that expects fewer endpoints");
        let open_mpi = [("OMPI_COMM_WORLD_LOCAL_SIZE", "8"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(given(2, &open_mpi), (8, 8), "Open MPI announces slots");
        let hydra_in_open_mpi = [
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("OMPI_COMM_WORLD_SIZE", "1"),
            ("MPI_LOCALNRANKS", "8"),
            ("PMI_SIZE", "8"),
        ];
        assert_eq!(given(8, &hydra_in_open_mpi), (8, 8), "the outer launcher is Open MPI's");
        let open_mpi_in_hydra = [
            ("MPI_LOCALNRANKS", "1"),
            ("PMI_SIZE", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
        ];
        assert_eq!(given(2, &open_mpi_in_hydra), (8, 8), "the outer launcher is MPICH's");
    }

    #[test]
    fn launchers_say_whether_a_job_spans_nodes() {
        let spans = |expected, variables: &[(&str, &str)]| {
            let lookup = |wanted: &str| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            };
            spans_nodes(ranks(expected, &lookup), &lookup)
        };
        assert!(!spans(4, &[]), "nobody says so");
        assert!(spans(4, &[("MPI_LOCALNRANKS", "2"), ("PMI_SIZE", "4")]));
        assert!(!spans(4, &[("MPI_LOCALNRANKS", "4"), ("PMI_SIZE", "4")]));
        assert!(spans(8, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]));
        let slurm = |nodes| [("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_STEP_NUM_NODES", nodes)];
        assert!(spans(4, &slurm("2")) && !spans(4, &slurm("1")));
        assert!(!spans(1, &slurm("2")), "a program alone");
        let hydra_in_slurm = [("MPI_LOCALNRANKS", "4"), ("PMI_SIZE", "4"), ("SLURM_STEP_NUM_NODES", "2")];
        assert!(!spans(4, &hydra_in_slurm), "the inner launcher knows better");
    }

    /// Variable with the directory in which a process that this test has started opens its endpoint.
    const DIRECTORY: &str = "TEST_NODE_DIRECTORY";

    fn open(directory: PathBuf, ranks: u32) -> Engine {
        let settings = Settings { shm_dir: directory, ..Settings::default() };
        let job = Job::from(ranks).with_key(JobKey::new(&"a job"));
        Engine::open(&settings, job, false).expect("an endpoint")
    }

    /// Another rank, in a process that runs this test too.
    fn start_rank(directory: &std::path::Path) -> Child {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "job::tests::ranks_that_come_later_are_counted_while_they_run", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process")
    }

    #[test]
    fn ranks_that_come_later_are_counted_while_they_run() {
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            let engine = open(directory.into(), 1);
            let _ = std::io::stdin().read_line(&mut String::new()); // until the other process closes it
            drop(engine);
            return;
        }
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let cores = weir_link::cores::available() as u32;
        let mut engine = open(directory.path().to_owned(), 1);
        assert_eq!(engine.ranks(), Ranks { node: 1, job: 1 });
        assert!(!engine.oversubscribed && engine.core_per_rank);

        let mut others: Vec<Child> = (0..cores).map(|_| start_rank(directory.path())).collect();
        let end = Instant::now() + Duration::from_secs(60);
        while engine.ranks().node <= cores {
            assert!(Instant::now() < end, "{:?} after 60 s", engine.ranks());
            engine.wait(10_000_000);
        }
        assert_eq!(engine.ranks(), Ranks { node: cores + 1, job: cores + 1 });
        assert!(engine.oversubscribed && !engine.core_per_rank, "more ranks than cores");

        // A rank that opens its endpoint now counts the others at once.
        let late = open(directory.path().to_owned(), 1);
        assert_eq!(late.ranks().node, cores + 1, "it is in this process");
        assert!(late.oversubscribed);

        for other in &mut others {
            drop(other.stdin.take());
            assert!(other.wait().expect("its status").success());
        }
        while engine.ranks().node > 1 {
            assert!(Instant::now() < end, "{:?} after 60 s", engine.ranks());
            engine.wait(10_000_000);
        }
        assert_eq!(engine.ranks(), Ranks { node: 1, job: 1 }, "the others have ended");
        assert!(!engine.oversubscribed && engine.core_per_rank, "a core for each rank again");
        drop((engine, late));
        let left = std::fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left, 0, "the last endpoint removes the node segment");
    }
}
