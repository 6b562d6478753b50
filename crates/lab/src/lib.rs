//! The laboratory: runs the worlds of a plan in the simulator, repeats published experiments and fits network models.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod reproduce;
pub mod sim;
