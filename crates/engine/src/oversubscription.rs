//! Oversubscription: decides from what the launcher says whether a job has more ranks than cores on this node, and
//! counts the cores that its ranks share.
//!
//! A rank with a core to itself may spin; ranks that share a core must yield it. The cores that a rank itself may use
//! do not distinguish the two. Two ranks that Open MPI or Slurm binds to a core each see one core. So do eight ranks
//! that Intel MPI binds to two cores. The launcher's daemon is mostly not bound, so its cores count.

use crate::launcher;

/// Whether this node has more ranks than cores, if the launcher's variables say how many ranks there are.
pub fn is_oversubscribed() -> bool {
    let lookup = launcher::environment;
    let ranks = launcher::ranks_of_node(&lookup).or_else(|| launcher::ranks_of_job(&lookup));
    ranks.is_some_and(|ranks| ranks as usize > cores())
}

/// The cores that the ranks of this node share, as far as is known. Reads files of other processes, so it is asked once.
pub fn cores() -> usize {
    let own = weir_link::cores::available();
    launcher::shared_cores().map_or(own, |shared| shared.max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_ranks_as_own_cores_have_a_core_each() {
        assert!((weir_link::cores::available()..1 << 20).contains(&cores()));
    }
}
