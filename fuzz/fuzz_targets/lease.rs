//! libFuzzer's entry to `everbyte_fuzz::lease`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::lease(bytes));
