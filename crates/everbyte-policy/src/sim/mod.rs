//! The simulator: a policy, a trace, and what storage would have had to do.
