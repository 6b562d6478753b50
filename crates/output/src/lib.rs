//! What the commands of weir share to print and write: failures, quantities with units, tables for terminals, charts
//! and figures, HTML pages and JSON records.
#![forbid(unsafe_code)]

pub mod chart;
pub mod failure;
pub mod figures;
pub mod markup;
pub mod quantity;
pub mod table;
pub mod write;

pub use failure::Failure;
