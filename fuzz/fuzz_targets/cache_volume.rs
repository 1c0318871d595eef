//! libFuzzer's entry to `everbyte_fuzz::cache_volume`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::cache_volume(bytes));
