//! libFuzzer's entry to `everbyte_fuzz::nbd_client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::nbd_client(bytes));
