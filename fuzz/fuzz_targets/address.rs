//! libFuzzer's entry to `everbyte_fuzz::address`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::address(bytes));
