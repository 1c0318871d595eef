//! libFuzzer's entry to `everbyte_fuzz::swap_table`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::swap_table(bytes));
