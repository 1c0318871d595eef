//! Population of a database (clause 4.3.3.1).

use anyhow::Result;
use rusqlite::{Connection, Statement, params};

use super::rng::{TpccRng, last_name};
use super::{DISTRICTS, Scale};

/// First payment of each customer, in cents.
const FIRST_PAYMENT: u32 = 1000;

/// Creates the tables and fills them, the same for the same seed. The database of the connection is empty and has its
/// page size.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn load(db: &Connection, scale: Scale, seed: u64) -> Result<()> {
    let mut loader = Loader { db, scale, rng: TpccRng::for_loading(seed) };
    db.execute_batch(include_str!("tables.sql"))?;
    let transaction = db.unchecked_transaction()?;
    loader.items()?;
    for warehouse in 1..=scale.warehouses {
        loader.warehouse(warehouse)?;
    }
    transaction.commit()?;
    // A sorted build of an index is cheaper than an insertion for each row.
    Ok(db.execute_batch(include_str!("indices.sql"))?)
}

struct Loader<'c> {
    db: &'c Connection,
    scale: Scale,
    rng: TpccRng,
}

impl Loader<'_> {
    fn items(&mut self) -> Result<()> {
        let mut insert = self.db.prepare("INSERT INTO item VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let rng = &mut self.rng;
        for item in 1..=self.scale.items() {
            let (image, name) = (rng.uniform(1, 10_000), rng.text(14, 24));
            let (price, data) = (rng.uniform(100, 10_000), rng.data(26, 50));
            insert.execute(params![item, image, name, price, data])?;
        }
        Ok(())
    }

    fn warehouse(&mut self, warehouse: u32) -> Result<()> {
        let of_district = self.scale.customers() * FIRST_PAYMENT;
        let (rng, ytd) = (&mut self.rng, i64::from(of_district) * i64::from(DISTRICTS));
        let (name, tax) = (rng.text(6, 10), rng.uniform(0, 2000));
        let [street_1, street_2, city, state, zip] = rng.address();
        self.db.execute(
            "INSERT INTO warehouse VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![warehouse, name, street_1, street_2, city, state, zip, tax, ytd],
        )?;
        self.stock(warehouse)?;
        for district in 1..=DISTRICTS {
            let rng = &mut self.rng;
            let (name, tax) = (rng.text(6, 10), rng.uniform(0, 2000));
            let [street_1, street_2, city, state, zip] = rng.address();
            let (ytd, next) = (of_district, self.scale.customers() + 1);
            self.db.execute(
                "INSERT INTO district VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                params![
                    warehouse, district, name, street_1, street_2, city, state, zip, tax, ytd, next
                ],
            )?;
            self.customers(warehouse, district)?;
            self.orders(warehouse, district)?;
        }
        Ok(())
    }

    fn stock(&mut self, warehouse: u32) -> Result<()> {
        let mut insert = self.db.prepare(
            "INSERT INTO stock VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0, 0, 0, ?14)",
        )?;
        let rng = &mut self.rng;
        for item in 1..=self.scale.items() {
            insert.raw_bind_parameter(1, warehouse)?;
            insert.raw_bind_parameter(2, item)?;
            insert.raw_bind_parameter(3, rng.uniform(10, 100))?;
            for column in 4..14 {
                insert.raw_bind_parameter(column, rng.text(24, 24))?;
            }
            insert.raw_bind_parameter(14, rng.data(26, 50))?;
            insert.raw_execute()?;
        }
        Ok(())
    }

    fn customers(&mut self, warehouse: u32, district: u32) -> Result<()> {
        let mut insert = self.db.prepare(
            "INSERT INTO customer VALUES (?1, ?2, ?3, ?4, 'OE', ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0,
             ?12, 5000000, ?13, -?14, ?14, 1, 0, ?15)",
        )?;
        let mut history = self.db.prepare(
            "INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount,
             h_data) VALUES (?1, ?2, ?3, ?2, ?3, 0, ?4, ?5)",
        )?;
        let names = self.scale.last_names();
        let rng = &mut self.rng;
        for id in 1..=self.scale.customers() {
            let last = last_name(if id <= names { id - 1 } else { rng.last_name_of(names) });
            let (first, phone, discount) = (rng.text(8, 16), rng.digits(16), rng.uniform(0, 5000));
            let [street_1, street_2, city, state, zip] = rng.address();
            let credit = if rng.percent(10) { "BC" } else { "GC" };
            let (data, note) = (rng.text(300, 500), rng.text(12, 24));
            insert.execute(params![
                warehouse,
                district,
                id,
                first,
                last,
                street_1,
                street_2,
                city,
                state,
                zip,
                phone,
                credit,
                discount,
                FIRST_PAYMENT,
                data
            ])?;
            history.execute(params![id, district, warehouse, FIRST_PAYMENT, note])?;
        }
        Ok(())
    }

    fn orders(&mut self, warehouse: u32, district: u32) -> Result<()> {
        let prepare = |sql| self.db.prepare(sql);
        let mut insert = prepare("INSERT INTO orders VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, 1)")?;
        let mut new_order = prepare("INSERT INTO new_order VALUES (?1, ?2, ?3)")?;
        let mut line =
            prepare("INSERT INTO order_line VALUES (?1, ?2, ?3, ?4, ?5, ?1, ?6, 5, ?7, ?8)")?;
        let mut customers: Vec<u32> = (1..=self.scale.customers()).collect();
        self.rng.shuffle(&mut customers);
        for (order, customer) in (1..).zip(customers) {
            let delivered = order <= self.scale.delivered();
            let carrier = delivered.then(|| self.rng.uniform(1, 10));
            let lines = self.rng.uniform(5, 15);
            insert.execute(params![warehouse, district, order, customer, carrier, lines])?;
            if !delivered {
                new_order.execute(params![warehouse, district, order])?;
            }
            for number in 1..=lines {
                self.order_line(&mut line, [warehouse, district, order, number], delivered)?;
            }
        }
        Ok(())
    }

    fn order_line(
        &mut self,
        insert: &mut Statement<'_>,
        [warehouse, district, order, number]: [u32; 4],
        delivered: bool,
    ) -> Result<()> {
        let rng = &mut self.rng;
        let item = rng.uniform(1, self.scale.items());
        let amount = if delivered { 0 } else { rng.uniform(1, 999_999) };
        let (date, info) = (delivered.then_some(0), rng.text(24, 24));
        insert.execute(params![warehouse, district, order, number, item, date, amount, info])?;
        Ok(())
    }
}
