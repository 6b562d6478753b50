//! Two levels: members on pretended nodes, each with a segment of its own, and UDP between them.

use fastrand::Rng;
use tempfile::TempDir;
use weir_engine::Engine;
use weir_engine::config::{LinkChoice, Settings};
use weir_engine::job::{Job, Ranks};
use weir_engine::levels::{Layout, LevelGroup, Step};
use weir_link::shm::node_group::NodeGroups;
use weir_link::shm::node_segment::JobKey;

use crate::Executor;
use crate::case::{Case, Collective, Results};
use crate::node::{Node, assert_all_have_begun, take_turns};

/// Node groups, whose participants meet over the network.
pub struct LevelExecutor {
    groups: Vec<LevelGroup>,
    engines: Vec<Engine>,
    _directories: Vec<TempDir>,
}

impl LevelExecutor {
    /// `None` for one member: two levels need two nodes.
    pub fn new(members: u32, random: &mut Rng) -> Option<LevelExecutor> {
        let nodes = random.u64(2..=5.min(members.max(2)).into());
        let mut placement: Vec<u64> = (0..members).map(|_| random.u64(..nodes)).collect();
        let last = placement.len() - 1;
        (placement[0], placement[last]) = (0, 1);
        if members == 1 {
            return None;
        }
        let directories: Vec<_> =
            (0..nodes).map(|_| tempfile::tempdir_in("/dev/shm").expect("a directory")).collect();
        let open = |&node: &u64| {
            let settings = Settings {
                shm_dir: directories[node as usize].path().to_owned(),
                links: LinkChoice::Both,
                net: Some(String::from("127.0.0.1")),
                close_ms: 100,
                ..Settings::default()
            };
            let near = placement.iter().filter(|&&other| other == node).count() as u32;
            let job = Job::known(Ranks { node: near, job: members }, JobKey::new(&"executors"));
            Engine::open(&settings, job, false).expect("an endpoint")
        };
        let mut engines: Vec<Engine> = placement.iter().map(open).collect();
        let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
        let handles: Vec<_> = engines.iter().map(|engine| engine.node_handle().expect("a segment")).collect();
        let join = |(rank, engine): (usize, &mut Engine)| {
            let layout = Layout::new(&placement, rank as u32).expect("few members");
            let ours = layout.neighbours().iter().map(|rank| handles[*rank as usize].endpoint());
            let ours: Vec<u64> = ours.collect();
            let node = (ours.len() > 1).then(|| {
                let groups = NodeGroups::open(handles[rank].clone()).expect("memory");
                groups.join(1, &ours, layout.place()).expect("room").expect("made before")
            });
            let participants: Vec<u32> = layout.participants().collect();
            let mut group = LevelGroup::new(layout, node.into_iter().collect());
            if group.needs_engine() {
                let peers = participants.iter().map(|rank| engine.peer(&addresses[*rank as usize])).collect();
                group.join_network(engine, 1, peers).expect("few groups");
            }
            group
        };
        let mut groups: Vec<LevelGroup> = engines.iter_mut().enumerate().map(join).collect();
        take_turns(members, random, |rank, _| {
            engines[rank].progress();
            groups[rank].has_joined(&mut engines[rank]) == Some(true)
        });
        Some(LevelExecutor { groups, engines, _directories: directories })
    }

    /// A group has one operation at a time.
    fn perform_one(&mut self, collective: &Collective, random: &mut Rng) -> Vec<Vec<u8>> {
        let (operation, members) = (collective.operation, self.groups.len() as u32);
        let mut results: Vec<Vec<u8>> =
            (0..members).map(|rank| vec![0xee; operation.result_bytes(rank, members)]).collect();
        let mut tasks: Vec<_> = (0..members).map(|_| None).collect();
        let mut have_begun = vec![false; tasks.len()];
        take_turns(members, random, |rank, _| {
            let (group, engine) = (&mut self.groups[rank], &mut self.engines[rank]);
            have_begun[rank] = true;
            engine.progress();
            let task = tasks[rank].get_or_insert_with(|| group.task(operation));
            let step = group.advance(task, &collective.data[rank], &mut results[rank]).expect("no failure");
            if step == Step::Network {
                group.advance_network(engine, task).expect("no failure");
            }
            if step == Step::Done {
                assert_all_have_begun(std::slice::from_ref(collective), 0, &have_begun);
            }
            step == Step::Done
        });
        results
    }
}

impl Executor for LevelExecutor {
    fn name(&self) -> String {
        String::from("two levels across hosts")
    }

    fn takes(&self, case: &Case) -> bool {
        let layout = self.groups[0].layout();
        matches!(case, Case::Collectives(all) if all.iter().all(|it| layout.takes(it.operation)))
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::Collectives(all) => all.iter().map(|it| self.perform_one(it, random)).collect(),
            _ => unreachable!("not taken"),
        });
        each.collect()
    }
}

impl Drop for LevelExecutor {
    fn drop(&mut self) {
        for (group, engine) in self.groups.iter_mut().zip(&mut self.engines) {
            group.leave(engine);
        }
        self.groups.clear();
        Node::close(&mut self.engines);
    }
}
