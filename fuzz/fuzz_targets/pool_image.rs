//! libFuzzer's entry to `everbyte_fuzz::pool_image`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::pool_image(bytes));
