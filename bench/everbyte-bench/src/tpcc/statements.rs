//! Every statement of the transactions, prepared once for a connection.

use rusqlite::{Connection, Result, Statement};

macro_rules! statements {
    ($($name:ident: $sql:literal,)*) => {
        /// Prepared statements by purpose.
        pub(super) struct Statements<'c> {
            $(pub(super) $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(super) fn prepare(db: &'c Connection) -> Result<Self> {
                Ok(Self { $($name: db.prepare($sql)?,)* })
            }
        }
    };
}

statements! {
    begin: "BEGIN",
    begin_immediate: "BEGIN IMMEDIATE",
    commit: "COMMIT",
    roll_back: "ROLLBACK",

    customer_terms: "SELECT c_discount, c_last, c_credit FROM customer
        WHERE c_w_id = ?1 AND c_d_id = ?2 AND c_id = ?3",
    warehouse_tax: "SELECT w_tax FROM warehouse WHERE w_id = ?1",
    district_terms: "SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = ?1 AND d_id = ?2",
    take_order_number: "UPDATE district SET d_next_o_id = d_next_o_id + 1
        WHERE d_w_id = ?1 AND d_id = ?2",
    insert_order: "INSERT INTO orders VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, ?7)",
    insert_new_order: "INSERT INTO new_order VALUES (?1, ?2, ?3)",
    item: "SELECT i_price, i_name, i_data FROM item WHERE i_id = ?1",
    stock: "SELECT rowid, s_quantity, s_data, s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05,
        s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10 FROM stock
        WHERE s_w_id = ?1 AND s_i_id = ?2",
    take_stock: "UPDATE stock SET s_quantity = ?2, s_ytd = s_ytd + ?3,
        s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + ?4 WHERE rowid = ?1",
    insert_order_line: "INSERT INTO order_line VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL, ?7, ?8, ?9)",

    customers_by_name: "SELECT rowid FROM customer
        WHERE c_w_id = ?1 AND c_d_id = ?2 AND c_last = ?3 ORDER BY c_first",
    customer_by_id: "SELECT rowid FROM customer
        WHERE c_w_id = ?1 AND c_d_id = ?2 AND c_id = ?3",

    pay_warehouse: "UPDATE warehouse SET w_ytd = w_ytd + ?2 WHERE w_id = ?1",
    warehouse_address: "SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip
        FROM warehouse WHERE w_id = ?1",
    pay_district: "UPDATE district SET d_ytd = d_ytd + ?3 WHERE d_w_id = ?1 AND d_id = ?2",
    district_address: "SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip
        FROM district WHERE d_w_id = ?1 AND d_id = ?2",
    payer: "SELECT c_id, c_credit, c_first, c_middle, c_last, c_street_1, c_street_2, c_city,
        c_state, c_zip, c_phone, c_since, c_credit_lim, c_discount, c_balance
        FROM customer WHERE rowid = ?1",
    pay: "UPDATE customer SET c_balance = c_balance - ?2, c_ytd_payment = c_ytd_payment + ?2,
        c_payment_cnt = c_payment_cnt + 1 WHERE rowid = ?1",
    pay_with_bad_credit: "UPDATE customer SET c_balance = c_balance - ?2,
        c_ytd_payment = c_ytd_payment + ?2, c_payment_cnt = c_payment_cnt + 1,
        c_data = substr(?3 || c_data, 1, 500) WHERE rowid = ?1",
    insert_history: "INSERT INTO history
        (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",

    customer_status: "SELECT c_id, c_balance, c_first, c_middle, c_last FROM customer
        WHERE rowid = ?1",
    last_order: "SELECT o_id, o_entry_d, o_carrier_id FROM orders
        WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_c_id = ?3 ORDER BY o_id DESC LIMIT 1",
    order_lines: "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d
        FROM order_line WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id = ?3",

    oldest_new_order: "SELECT no_o_id FROM new_order WHERE no_w_id = ?1 AND no_d_id = ?2
        ORDER BY no_o_id LIMIT 1",
    delete_new_order: "DELETE FROM new_order WHERE no_w_id = ?1 AND no_d_id = ?2 AND no_o_id = ?3",
    ordering_customer: "SELECT o_c_id FROM orders
        WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id = ?3",
    set_carrier: "UPDATE orders SET o_carrier_id = ?4
        WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id = ?3",
    deliver_lines: "UPDATE order_line SET ol_delivery_d = ?4
        WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id = ?3",
    amount_of_lines: "SELECT sum(ol_amount) FROM order_line
        WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id = ?3",
    charge_customer: "UPDATE customer SET c_balance = c_balance + ?4,
        c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = ?1 AND c_d_id = ?2 AND c_id = ?3",

    next_order_number: "SELECT d_next_o_id FROM district WHERE d_w_id = ?1 AND d_id = ?2",
    low_stocks: "SELECT count(DISTINCT s_i_id) FROM order_line CROSS JOIN stock
        ON s_w_id = ol_w_id AND s_i_id = ol_i_id
        WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id >= ?3 - 20 AND ol_o_id < ?3
        AND s_quantity < ?4",
}
