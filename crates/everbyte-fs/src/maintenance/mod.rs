//! The volume as a whole: kind, status, check, scrub, salvage and resize.

pub(crate) mod check;
pub(crate) mod kind;
pub(crate) mod resize;
pub(crate) mod salvage;
pub(crate) mod scrub;
pub(crate) mod status;
