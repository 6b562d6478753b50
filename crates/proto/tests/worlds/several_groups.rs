//! Tests of random worlds in which endpoints are in several groups at a time, with overlapping members. Members leave
//! early, and endpoints die. The operations of a group that nobody has left and in which nobody is dead complete.
//! Those of the others complete or end with the error, at all members. Nothing is left when all have left.

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::{Machine, Outcome, Peer, Scheme};

use super::groups::{Group, MAX_OUTSTANDING, collect, post_message};
use super::world::{Plan, World, with_busy_links};
use super::{plan, run};

const MOST_GROUPS: u32 = 5;
const MOST_ROUNDS: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Member,
    Left,
}

struct Program {
    world: World,
    rng: Rng,
    groups: Vec<Group>,
    /// By group and rank.
    states: Vec<Vec<State>>,
    /// Groups that members leave at any time.
    hasty: Vec<bool>,
    /// Each endpoint that dies, with the step.
    victims: Vec<(u32, usize)>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut rng = Rng::with_seed(seed);
        let endpoints = rng.u32(3..=7);
        // The dead keep the lanes that they have, and those that do not notice their death need others.
        let mut plan = Plan { endpoints, max_lanes: endpoints as usize, ..plan(&mut rng) };
        if let Scheme::Hardware { rnr_retries, .. } = &mut plan.scheme {
            *rnr_retries = WITHOUT_LIMIT;
        }
        let group = |number, rng: &mut Rng| {
            let mut members: Vec<u32> = (0..endpoints).collect();
            rng.shuffle(&mut members);
            members.truncate(rng.usize(1..=members.len()));
            let rounds = rng.usize(1..=MOST_ROUNDS);
            Group::new(rng, 100 + number, members, rounds)
        };
        let groups: Vec<Group> =
            (0..rng.u32(2..=MOST_GROUPS)).map(|number| group(number, &mut rng)).collect();
        let states = groups.iter().map(|group| vec![State::Absent; group.members.len()]).collect();
        let hasty = groups.iter().map(|_| rng.u8(..3) == 0).collect();
        let mut endpoints: Vec<u32> = (0..endpoints).collect();
        rng.shuffle(&mut endpoints);
        endpoints.truncate(rng.usize(..3));
        let victims = endpoints.into_iter().map(|victim| (victim, rng.usize(1..120))).collect();
        Program { world: World::new(plan), rng, groups, states, hasty, victims }
    }

    fn is_victim(&self, endpoint: u32) -> bool {
        self.victims.iter().any(|(victim, _)| *victim == endpoint)
    }

    /// Whether all operations of a group must complete.
    fn is_whole(&self, group: usize) -> bool {
        !self.hasty[group] && !self.groups[group].members.iter().any(|member| self.is_victim(*member))
    }

    fn collect(&mut self) {
        collect(&mut self.groups, &mut self.world);
    }

    fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            let rng = &mut self.rng;
            self.world.step(|count| rng.usize(..count));
            self.collect();
        }
    }

    fn run_to_rest(&mut self) {
        let rng = &mut self.rng;
        self.world.run_to_rest(|count| rng.usize(..count));
        self.collect();
    }

    /// A member joins, starts its next operation, or leaves.
    fn act(&mut self, group: usize, rank: usize) {
        let Program { world, groups, states, hasty, rng, .. } = self;
        let members = groups[group].members.len();
        if world.is_dead(groups[group].members[rank]) {
            return;
        }
        let state = &mut states[group][rank];
        match *state {
            State::Absent => {
                groups[group].join(world, rank, None);
                *state = State::Member;
            }
            State::Member => {
                // All operations have ended everywhere, or this group does not wait for that.
                let has_ended = groups[group].ended.len() == members * groups[group].rounds.len();
                if has_ended || hasty[group] && rng.u8(..30) == 0 {
                    groups[group].leave(world, rank);
                    *state = State::Left;
                } else {
                    groups[group].begin(world, rank);
                }
            }
            State::Left => {}
        }
        self.collect();
    }

    /// Endpoints act and die in any order.
    fn main_part(&mut self) {
        let endpoints = self.world.plan.endpoints;
        let mut not_heard: Vec<(u32, u32, usize)> = Vec::new();
        for &(victim, dies_at) in &self.victims {
            let survivors = (0..endpoints).filter(|other| *other != victim);
            not_heard.extend(survivors.map(|other| (other, victim, dies_at + self.rng.usize(..60))));
        }
        let has_more = |program: &Program| {
            (0..program.groups.len()).any(|group| {
                let Group { members, rounds, started, .. } = &program.groups[group];
                (0..members.len()).any(|rank| {
                    let state = program.states[group][rank];
                    let can_start = state == State::Member && started[rank] < rounds.len();
                    !program.is_victim(members[rank]) && (can_start || state == State::Absent)
                })
            })
        };
        for step in 0.. {
            assert!(step < 200_000, "members do not get on");
            for (victim, _) in self.victims.iter().filter(|(_, dies_at)| *dies_at == step) {
                self.world.kill(*victim);
            }
            for (other, victim, _) in not_heard.extract_if(.., |(_, _, hears_at)| *hears_at == step) {
                if !self.world.is_dead(other) {
                    self.world.lose(other, victim);
                }
            }
            self.collect();
            if step > 180 && not_heard.is_empty() && !has_more(self) {
                break;
            }
            let pair = (self.rng.u32(..endpoints), self.rng.u32(..endpoints));
            let are_alive = !self.world.is_dead(pair.0) && !self.world.is_dead(pair.1);
            if self.rng.u8(..4) == 0 && are_alive && self.world.outstanding(pair.0).len() < MAX_OUTSTANDING {
                post_message(&mut self.world, &mut self.rng, pair);
                self.collect();
            }
            let group = self.rng.usize(..self.groups.len());
            let rank = self.rng.usize(..self.groups[group].members.len());
            self.act(group, rank);
            let steps = self.rng.usize(..8);
            self.steps(steps);
        }
    }

    fn check_outcomes(&self) {
        for (number, group) in self.groups.iter().enumerate() {
            let lost: Vec<Peer> = (0..group.members.len())
                .filter(|&rank| {
                    self.is_victim(group.members[rank]) || self.states[number][rank] == State::Left
                })
                .map(|rank| Peer(group.members[rank]))
                .collect();
            for (&(rank, operation), (outcome, buffer)) in &group.ended {
                if self.is_victim(group.members[rank as usize]) {
                    continue;
                }
                let what = || format!("operation {operation} of group {number} at {rank}");
                match outcome {
                    Outcome::Done => assert_eq!(*buffer, group.expected(rank, operation), "{}", what()),
                    Outcome::Lost { peer: Some(peer), .. } => {
                        assert!(!self.is_whole(number) && lost.contains(peer), "{}: {outcome:?}", what());
                    }
                    other => panic!("{}: {other:?}", what()),
                }
            }
            let open = group.outstanding.values();
            let open = open.filter(|(rank, _)| !self.is_victim(group.members[*rank as usize]));
            assert_eq!(open.count(), 0, "group {number}: {:?}", group.outstanding);
            if self.is_whole(number) {
                assert_eq!(group.ended.len(), group.members.len() * group.rounds.len(), "group {number}");
            }
        }
    }

    /// A dead member ends the operations that are started from now on.
    fn start_after_deaths(&mut self) {
        for number in 0..self.groups.len() {
            let members = self.groups[number].members.clone();
            let has_dead = members.iter().any(|member| self.is_victim(*member));
            for (rank, member) in members.into_iter().enumerate() {
                if !has_dead || self.is_victim(member) || self.states[number][rank] != State::Member {
                    continue;
                }
                let operation = self.groups[number].started[rank];
                if operation == self.groups[number].rounds.len() {
                    let again = self.groups[number].rounds[0].clone();
                    self.groups[number].rounds.push(again);
                }
                self.groups[number].begin(&mut self.world, rank);
                self.collect();
                let outcome = self.groups[number].ended[&(rank as u32, operation)].0;
                assert!(matches!(outcome, Outcome::Lost { .. }), "group {number} at {rank}: {outcome:?}");
            }
        }
    }

    fn survivors(&self) -> impl Iterator<Item = u32> {
        (0..self.world.plan.endpoints).filter(|endpoint| !self.is_victim(*endpoint))
    }

    fn leave_all(&mut self) {
        for (group, states) in self.groups.iter().zip(&mut self.states) {
            for (rank, state) in states.iter_mut().enumerate() {
                let is_dead = self.world.is_dead(group.members[rank]);
                if !is_dead && std::mem::replace(state, State::Left) == State::Member {
                    group.leave(&mut self.world, rank);
                }
            }
        }
        self.run_to_rest();
    }

    fn assert_nothing_is_left(&self) {
        for endpoint in self.survivors() {
            let state = &self.world.ranks[endpoint as usize];
            assert!(state.machine.is_quiescent() && state.offload.is_quiescent(), "{endpoint}: {state:?}");
            assert_eq!(
                (state.machine_buffers(), state.offload.group_count()),
                (0, 0),
                "{endpoint}: {state:?}"
            );
            assert_eq!(self.world.outstanding(endpoint), [], "requests of {endpoint}");
        }
    }

    /// The endpoints that are left make another group, and do their operations.
    fn work_in_a_new_group(&mut self) {
        let members: Vec<u32> = self.survivors().collect();
        let count = members.len();
        self.groups = vec![Group::new(&mut self.rng, 200, members, 4)];
        (self.states, self.hasty, self.victims) = (vec![vec![State::Absent; count]], vec![false], Vec::new());
        for _ in 0..5 {
            (0..count).for_each(|rank| self.act(0, rank));
        }
        self.run_to_rest();
        self.check_outcomes();
    }
}

fn several_groups_world(seed: u64) -> u64 {
    let mut program = Program::new(seed);
    program.main_part();
    program.run_to_rest();
    program.check_outcomes();
    program.start_after_deaths();
    program.leave_all();
    program.assert_nothing_is_left();
    program.work_in_a_new_group();
    program.leave_all();
    program.world.trace
}

#[test]
fn groups_with_common_members_fail_alone_and_leave_nothing() {
    run("groups_with_common_members_fail_alone_and_leave_nothing", 400, several_groups_world);
}

#[test]
fn groups_with_common_members_fail_alone_over_busy_links() {
    run("groups_with_common_members_fail_alone_over_busy_links", 200, |seed| {
        with_busy_links(seed, || several_groups_world(seed))
    });
}
