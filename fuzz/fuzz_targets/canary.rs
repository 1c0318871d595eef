//! libFuzzer's entry to `everbyte_fuzz::canary`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::canary(bytes));
