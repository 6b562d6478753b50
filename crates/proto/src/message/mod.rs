//! Messages: which receive gets which message. Nothing here sends.

pub(crate) mod posted;
pub(crate) mod unexpected;
