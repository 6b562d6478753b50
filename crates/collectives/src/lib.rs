//! `libweir-mpi.so`: collective operations of unmodified MPI programs, done by a node group instead of messages. `weir run
//! --collectives on` preloads it.
//!
//! It defines `MPI_Barrier` and the others (`entry`), so the program calls them instead of the MPI's. What it does not
//! take, it passes to the MPI under the names that the standard has for this (`PMPI_Barrier`). It has no MPI header: a
//! table for each binary interface has the handles (`abi`). The groups are those of the provider in the same process
//! (`provider`).
//! ```text
//! program        MPI_Allreduce(in, out, 1, MPI_DOUBLE, MPI_SUM, comm)
//! entry          the arguments become a Call
//! call           choice: 8 bytes, sum of F64; this is a choice by what MPI requires to be equal at all members
//! world          first call of comm: have all members this library? All of them find the same
//! communicators  if so, they agree (agreement), by PMPI_Allgather; then its group is known
//! recent         a call like one before needs none of this, nor the next line
//! elements       what this member contributes and gets, as bytes without gaps
//! member         performs the operation in the group; between two looks it yields, and lets the MPI make progress
//! requests       or starts it: a receive of the MPI ends with it, and is the program's request
//! ```
//! Members must never choose different ways for one call. So there are two decisions only: one for each communicator,
//! which all members compute from the same tables, and one for each call, from arguments that MPI requires to be equal.
//!
//! In a process without MPI or without weir this library does nothing.

mod abi;
mod agreement;
mod call;
mod choice;
mod communicators;
mod elements;
mod entry;
mod member;
mod mpi;
mod provider;
mod recent;
mod reduce_scatter;
mod requests;
mod world;
