//! Filling a database (clause 4.3.3.1).

use anyhow::{Context, Result};
use rusqlite::{Connection, Statement, params};

use super::rng::{TpccRng, last_name};
use super::schema::{INDICES, TABLES};
use super::{DISTRICTS, Scale};

/// Payment of every customer before the beginning, in cents.
const FIRST_PAYMENT: u32 = 1000;

/// Makes the tables and fills them, the same for the same seed. The connection's database must be
/// empty; a page size other than SQLite's must have been set before.
///
/// # Errors
/// SQLite's.
pub(crate) fn load(db: &Connection, scale: &Scale, seed: u64) -> Result<()> {
    let mut loader = Loader { db, scale: *scale, rng: TpccRng::for_loading(seed) };
    db.execute_batch(TABLES).context("cannot make the tables")?;
    loader.in_transaction(Loader::items)?;
    for warehouse in 1..=scale.warehouses {
        loader.in_transaction(|loader| loader.warehouse(warehouse))?;
    }
    db.execute_batch(INDICES).context("cannot make the indices")
}

struct Loader<'c> {
    db: &'c Connection,
    scale: Scale,
    rng: TpccRng,
}

impl Loader<'_> {
    fn in_transaction(
        &mut self,
        fill: impl FnOnce(&mut Self) -> rusqlite::Result<()>,
    ) -> Result<()> {
        let transaction = self.db.unchecked_transaction()?;
        fill(self).context("cannot load rows")?;
        Ok(transaction.commit()?)
    }

    fn items(&mut self) -> rusqlite::Result<()> {
        let mut insert = self.db.prepare("INSERT INTO item VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let rng = &mut self.rng;
        for item in 1..=self.scale.items() {
            let (image, name) = (rng.uniform(1, 10_000), rng.text(14, 24));
            let (price, data) = (rng.uniform(100, 10_000), rng.data(26, 50));
            insert.execute(params![item, image, name, price, data])?;
        }
        Ok(())
    }

    fn warehouse(&mut self, warehouse: u32) -> rusqlite::Result<()> {
        let per_district = self.scale.customers() * FIRST_PAYMENT;
        let rng = &mut self.rng;
        self.db.execute(
            "INSERT INTO warehouse VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                warehouse,
                rng.text(6, 10),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(2, 2),
                rng.zip(),
                rng.uniform(0, 2000),
                i64::from(per_district) * i64::from(DISTRICTS),
            ],
        )?;
        self.stock(warehouse)?;
        for district in 1..=DISTRICTS {
            self.district(warehouse, district, per_district)?;
            self.customers(warehouse, district)?;
            self.orders(warehouse, district)?;
        }
        Ok(())
    }

    fn stock(&mut self, warehouse: u32) -> rusqlite::Result<()> {
        let mut insert = self.db.prepare(
            "INSERT INTO stock VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0, 0, 0, ?14)",
        )?;
        let rng = &mut self.rng;
        for item in 1..=self.scale.items() {
            insert.raw_bind_parameter(1, warehouse)?;
            insert.raw_bind_parameter(2, item)?;
            insert.raw_bind_parameter(3, rng.uniform(10, 100))?;
            for district in 0..DISTRICTS {
                let column = usize::try_from(4 + district).unwrap_or(usize::MAX);
                insert.raw_bind_parameter(column, rng.text(24, 24))?;
            }
            insert.raw_bind_parameter(14, rng.data(26, 50))?;
            insert.raw_execute()?;
        }
        Ok(())
    }

    fn district(&mut self, warehouse: u32, district: u32, ytd: u32) -> rusqlite::Result<()> {
        let rng = &mut self.rng;
        self.db.execute(
            "INSERT INTO district VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                warehouse,
                district,
                rng.text(6, 10),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(2, 2),
                rng.zip(),
                rng.uniform(0, 2000),
                ytd,
                self.scale.customers() + 1,
            ],
        )?;
        Ok(())
    }

    fn customers(&mut self, warehouse: u32, district: u32) -> rusqlite::Result<()> {
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
        for customer in 1..=self.scale.customers() {
            let name = if customer <= names { customer - 1 } else { rng.last_name_of(names) };
            insert.execute(params![
                warehouse,
                district,
                customer,
                rng.text(8, 16),
                last_name(name),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(10, 20),
                rng.text(2, 2),
                rng.zip(),
                rng.digits(16),
                if rng.percent(10) { "BC" } else { "GC" },
                rng.uniform(0, 5000),
                FIRST_PAYMENT,
                rng.text(300, 500),
            ])?;
            history.execute(params![
                customer,
                district,
                warehouse,
                FIRST_PAYMENT,
                rng.text(12, 24)
            ])?;
        }
        Ok(())
    }

    fn orders(&mut self, warehouse: u32, district: u32) -> rusqlite::Result<()> {
        let mut insert =
            self.db.prepare("INSERT INTO orders VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, 1)")?;
        let mut new_order = self.db.prepare("INSERT INTO new_order VALUES (?1, ?2, ?3)")?;
        let mut line = self
            .db
            .prepare("INSERT INTO order_line VALUES (?1, ?2, ?3, ?4, ?5, ?1, ?6, 5, ?7, ?8)")?;
        let customers = self.rng.permutation(self.scale.customers());
        for (order, customer) in (1..).zip(customers) {
            let delivered = order <= self.scale.delivered();
            let carrier = delivered.then(|| self.rng.uniform(1, 10));
            let lines = self.rng.uniform(5, 15);
            insert.execute(params![warehouse, district, order, customer, carrier, lines])?;
            if !delivered {
                new_order.execute(params![warehouse, district, order])?;
            }
            for number in 1..=lines {
                let key = [warehouse, district, order, number];
                self.order_line(&mut line, key, delivered)?;
            }
        }
        Ok(())
    }

    fn order_line(
        &mut self,
        insert: &mut Statement<'_>,
        [warehouse, district, order, number]: [u32; 4],
        delivered: bool,
    ) -> rusqlite::Result<()> {
        let rng = &mut self.rng;
        let item = rng.uniform(1, self.scale.items());
        let amount = if delivered { 0 } else { rng.uniform(1, 999_999) };
        let (date, info) = (delivered.then_some(0), rng.text(24, 24));
        insert.execute(params![warehouse, district, order, number, item, date, amount, info])?;
        Ok(())
    }
}
