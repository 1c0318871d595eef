//! libFuzzer's entry to `everbyte_fuzz::trace_fiu`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::trace_fiu(bytes));
