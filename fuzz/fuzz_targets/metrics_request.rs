//! libFuzzer's entry to `everbyte_fuzz::metrics_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::metrics_request(bytes));
