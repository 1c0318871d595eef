//! libFuzzer's entry to `everbyte_fuzz::vhost_ring`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::vhost_ring(bytes));
