//! Traces made up.
