//! libFuzzer's entry to `everbyte_fuzz::fs_image`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::fs_image(bytes));
