//! libFuzzer's entry to `everbyte_fuzz::trace_lcs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::trace_lcs(bytes));
