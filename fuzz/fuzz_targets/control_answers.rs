//! libFuzzer's entry to `everbyte_fuzz::control_answers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::control_answers(bytes));
