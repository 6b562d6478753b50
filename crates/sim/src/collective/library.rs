//! The collective calls of an MPI library: chooses the algorithm by size and number of ranks, and runs it.
//!
//! Sources: MPICH 3.2, `src/mpi/coll` and its control variables (`MPIR_CVAR_*`); Open MPI 1.6 to 4.0, module `tuned`,
//! `coll_tuned_decision_fixed.c`, and `coll/base` for the basic algorithms. The choices are those of default settings,
//! commutative operations, and one communicator without knowledge of nodes. Calls with a length for each rank (`v`) get
//! equal lengths.

use serde::Deserialize;

use super::Group;

/// An MPI library. The thesis uses Open MPI on EXTOLL (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// MPICH, on which MVAPICH is based.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

use Library::{Mpich, OpenMpi};

const KIB: u64 = 1024;

impl Library {
    /// `MPI_Barrier`.
    pub async fn barrier(self, group: &Group) {
        match self {
            OpenMpi if group.size().is_power_of_two() => group.barrier_doubling().await,
            Mpich | OpenMpi => group.barrier().await,
        }
    }

    /// `MPI_Bcast` of `bytes` bytes.
    pub async fn broadcast(self, group: &Group, root: u32, bytes: u64) {
        let n = group.size();
        match self {
            Mpich if bytes < 12 * KIB || n < 8 => group.broadcast(root, bytes).await,
            Mpich if bytes < 512 * KIB && n.is_power_of_two() => {
                group.broadcast_scatter_doubling(root, bytes).await;
            }
            Mpich => group.broadcast_scatter_ring(root, bytes).await,
            OpenMpi if bytes < 2048 => group.broadcast(root, bytes).await,
            OpenMpi if bytes < 370_728 => group.broadcast_split_binary(root, bytes, KIB).await,
            OpenMpi => {
                let below = |per_byte: f64, offset: f64| f64::from(n) < per_byte * bytes as f64 + offset;
                let segment_bytes = match () {
                    () if below(1.6134e-6, 2.1102) => 128 * KIB,
                    () if n < 13 => return group.broadcast_split_binary(root, bytes, 8 * KIB).await,
                    () if below(2.3679e-6, 1.1787) => 64 * KIB,
                    () if below(3.2118e-6, 8.7936) => 16 * KIB,
                    () => 8 * KIB,
                };
                group.broadcast_pipeline(root, bytes, segment_bytes).await;
            }
        }
    }

    /// `MPI_Reduce` of `bytes` bytes.
    pub async fn reduce(self, group: &Group, root: u32, bytes: u64) {
        let n = group.size();
        // Open MPI's model of two algorithms: the number of ranks per KiB decides which is faster.
        let above = |per_kib: f64, offset: f64| f64::from(n) > per_kib / 1024.0 * bytes as f64 + offset;
        match self {
            Mpich if bytes <= 2048 => group.reduce(root, bytes).await,
            Mpich => group.reduce_halving(root, bytes).await,
            OpenMpi if n < 8 && bytes < 512 => group.reduce_linear(root, bytes).await,
            OpenMpi if (n < 8 && bytes < 20_480) || bytes < 2048 => group.reduce(root, bytes).await,
            OpenMpi if above(0.6016, 1.3496) => group.reduce_segmented(root, bytes, KIB).await,
            OpenMpi if above(0.0410, 9.7128) => group.reduce_pipeline(root, bytes, KIB).await,
            OpenMpi if above(0.0422, 1.1614) => group.reduce_segmented(root, bytes, 32 * KIB).await,
            OpenMpi if above(0.0033, 1.6761) => group.reduce_pipeline(root, bytes, 32 * KIB).await,
            OpenMpi => group.reduce_pipeline(root, bytes, 64 * KIB).await,
        }
    }

    /// `MPI_Allreduce` of `bytes` bytes. Open MPI splits more than 1 MiB per rank into phases; here it stays
    /// one ring.
    pub async fn allreduce(self, group: &Group, bytes: u64) {
        match self {
            Mpich if bytes <= 2048 => group.allreduce(bytes).await,
            Mpich => group.allreduce_halving(bytes).await,
            OpenMpi if bytes < 10_000 => group.allreduce(bytes).await,
            OpenMpi => group.allreduce_ring(bytes).await,
        }
    }

    /// `MPI_Reduce_scatter` of `bytes` bytes, counted over all members.
    pub async fn reduce_scatter(self, group: &Group, bytes: u64) {
        let n = group.size();
        match self {
            Mpich if bytes < 512 * KIB => group.reduce_scatter_halving(bytes).await,
            Mpich => group.reduce_scatter_pairwise(bytes).await,
            OpenMpi
                if bytes <= 12 * KIB
                    || (bytes <= 256 * KIB && n.is_power_of_two())
                    || f64::from(n) >= 0.0012 * bytes as f64 + 8.0 =>
            {
                group.reduce_scatter_halving(bytes).await;
            }
            OpenMpi => group.reduce_scatter_ring(bytes).await,
        }
    }

    /// `MPI_Allgather` of `bytes` bytes from each.
    pub async fn allgather(self, group: &Group, bytes: u64) {
        let n = group.size();
        let total = bytes * u64::from(n);
        match self {
            Mpich if total < 512 * KIB && n.is_power_of_two() => group.allgather_doubling(bytes).await,
            Mpich if total < 80 * KIB => group.allgather_bruck(bytes).await,
            Mpich => group.allgather_ring(bytes).await,
            OpenMpi if (total < 50_000 || n == 2) && n.is_power_of_two() => {
                group.allgather_doubling(bytes).await;
            }
            OpenMpi if total < 50_000 => group.allgather_bruck(bytes).await,
            OpenMpi if n.is_multiple_of(2) => group.allgather_neighbours(bytes).await,
            OpenMpi => group.allgather_ring(bytes).await,
        }
    }

    /// `MPI_Allgatherv` of the same number of bytes from each.
    pub async fn allgatherv(self, group: &Group, bytes: u64) {
        let short = bytes * u64::from(group.size()) < 50_000 && group.size() > 2;
        match self {
            OpenMpi if short => group.allgather_bruck(bytes).await,
            Mpich | OpenMpi => self.allgather(group, bytes).await,
        }
    }

    /// `MPI_Gather` of `bytes` bytes from each.
    pub async fn gather(self, group: &Group, root: u32, bytes: u64) {
        let n = group.size();
        match self {
            Mpich => group.gather_binomial(root, bytes).await,
            OpenMpi if bytes > 92_160 => group.gather_synchronised(root, bytes, 32 * KIB).await,
            OpenMpi if bytes > 6000 => group.gather_synchronised(root, bytes, KIB).await,
            OpenMpi if n > 60 || (n > 10 && bytes < 1024) => group.gather_binomial(root, bytes).await,
            OpenMpi => group.gather_in_turn(root, bytes).await,
        }
    }

    /// `MPI_Gatherv` of the same number of bytes from each. MPICH uses synchronous sends from 32 ranks on;
    /// here they are ordinary ones.
    pub async fn gatherv(self, group: &Group, root: u32, bytes: u64) {
        match self {
            Mpich => group.gather_linear(root, bytes).await,
            OpenMpi => group.gather_in_turn(root, bytes).await,
        }
    }

    /// `MPI_Scatter` of `bytes` bytes to each.
    pub async fn scatter(self, group: &Group, root: u32, bytes: u64) {
        match self {
            Mpich => group.scatter_binomial(root, bytes).await,
            OpenMpi if group.size() > 10 && bytes < 300 => group.scatter_binomial(root, bytes).await,
            OpenMpi => group.scatter_in_turn(root, bytes).await,
        }
    }

    /// `MPI_Scatterv` of the same number of bytes to each.
    pub async fn scatterv(self, group: &Group, root: u32, bytes: u64) {
        match self {
            Mpich => group.scatter_linear(root, bytes).await,
            OpenMpi => group.scatter_in_turn(root, bytes).await,
        }
    }

    /// `MPI_Alltoall` of `bytes` bytes to each.
    pub async fn alltoall(self, group: &Group, bytes: u64) {
        let n = group.size();
        match self {
            Mpich if bytes <= 256 && n >= 8 => group.alltoall_bruck(bytes).await,
            Mpich if bytes <= 32 * KIB => group.alltoall_batches(bytes, 32).await,
            Mpich => group.alltoall_pairwise(bytes).await,
            OpenMpi if bytes < 200 && n > 12 => group.alltoall_bruck(bytes).await,
            OpenMpi if bytes < 3000 => group.alltoall_linear(bytes, 0).await,
            OpenMpi => group.alltoall_shifted(bytes).await,
        }
    }

    /// `MPI_Alltoallv` of the same number of bytes to each.
    pub async fn alltoallv(self, group: &Group, bytes: u64) {
        match self {
            Mpich => group.alltoall_batches(bytes, 32).await,
            OpenMpi => group.alltoall_shifted(bytes).await,
        }
    }
}
