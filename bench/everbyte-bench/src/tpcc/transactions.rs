//! The five transactions (clauses 2.4 to 2.8).
//!
//! Invariants: a transaction reads and writes the columns of its clause, also those that a terminal displays. It ends
//! committed or rolled back. The deliveries of the ten districts of a warehouse are one transaction (allowed by clause
//! 2.7.1.3).

use std::hint::black_box;

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use serde::{Deserialize, Serialize};

use super::rng::{TpccRng, last_name};
use super::statements::Statements;
use super::{DISTRICTS, Scale};

/// Result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Done {
    /// A new order with its number of lines.
    NewOrder { warehouse: u32, district: u32, order: i64, lines: u32 },
    /// A new order with an unknown item was rolled back (clause 2.4.1.4).
    RolledBack,
    /// A payment in cents, with its row in `history`.
    Payment { history: i64, amount: u32 },
    /// A query of a customer's last order.
    OrderStatus,
    /// Delivery of the oldest new order of each district: district and order.
    Delivery { warehouse: u32, orders: Vec<(u32, i64)> },
    /// A count of the items of recent orders with low stock.
    StockLevel,
}

/// The kinds in the order of the counts of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// The only user of a connection.
pub(super) struct Terminal<'c> {
    db: &'c Connection,
    statements: Statements<'c>,
    pub(super) rng: TpccRng,
    scale: Scale,
    /// The date.
    now: i64,
}

impl<'c> Terminal<'c> {
    pub(super) fn new(db: &'c Connection, scale: Scale, rng: TpccRng) -> Result<Self> {
        let statements = Statements::prepare(db)?;
        Ok(Self { db, statements, rng, scale, now: 0 })
    }

    /// Runs a transaction to its end. A failed transaction is rolled back.
    pub(super) fn transact(&mut self, kind: Kind) -> Result<Done> {
        let done = self.work(kind).and_then(|done| {
            let end = match done {
                Done::RolledBack => &mut self.statements.roll_back,
                _ => &mut self.statements.commit,
            };
            end.execute([]).map(|_| done)
        });
        // SQLite ends a transaction itself after some errors.
        if done.is_err() && !self.db.is_autocommit() {
            // The first error is the cause. An error of the rollback follows from it.
            let _undone = self.statements.roll_back.execute([]);
        }
        done
    }

    /// Begins a transaction and does its work.
    fn work(&mut self, kind: Kind) -> Result<Done> {
        self.now += 1;
        let warehouse = self.rng.uniform(1, self.scale.warehouses);
        let begin = match kind {
            // The write lock is taken first: an upgrade of a read lock could fail after half of the work.
            Kind::NewOrder | Kind::Payment | Kind::Delivery => &mut self.statements.begin_immediate,
            Kind::OrderStatus | Kind::StockLevel => &mut self.statements.begin,
        };
        begin.execute([])?;
        match kind {
            Kind::NewOrder => self.new_order(warehouse),
            Kind::Payment => self.payment(warehouse),
            Kind::OrderStatus => self.order_status(warehouse),
            Kind::Delivery => self.delivery(warehouse),
            Kind::StockLevel => self.stock_level(warehouse),
        }
    }

    fn new_order(&mut self, warehouse: u32) -> Result<Done> {
        let district = self.rng.uniform(1, DISTRICTS);
        let customer = self.rng.customer(self.scale.customers());
        let drawn = self.draw_lines(warehouse);
        let lines = u32::try_from(drawn.len()).unwrap_or(u32::MAX);
        let all_local = drawn.iter().all(|&[_, _, supplier, _]| supplier == warehouse);
        let statements = &mut self.statements;
        let key = [warehouse, district, customer];
        let discount: i64 = statements.customer_terms.query_row(key, shown::<_, 3>)?;
        let tax: i64 = statements.warehouse_tax.query_row([warehouse], shown::<_, 1>)?;
        let key = [warehouse, district];
        let terms = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (order, district_tax): (i64, i64) = statements.district_terms.query_row(key, terms)?;
        statements.take_order_number.execute(key)?;
        let terms = params![warehouse, district, order, customer, self.now, lines, all_local];
        statements.insert_order.execute(terms)?;
        statements.insert_new_order.execute(params![warehouse, district, order])?;
        let mut total = 0;
        for line in drawn {
            match self.order_line((warehouse, district, order), line)? {
                Some(amount) => total += amount,
                None => return Ok(Done::RolledBack),
            }
        }
        black_box(total * (10_000 - discount) / 10_000 * (10_000 + tax + district_tax) / 10_000);
        Ok(Done::NewOrder { warehouse, district, order, lines })
    }

    /// Draws the lines of an order: number, item, supplying warehouse, quantity. In one order of a hundred, the last
    /// item is unknown.
    fn draw_lines(&mut self, warehouse: u32) -> Vec<[u32; 4]> {
        let rng = &mut self.rng;
        let (items, warehouses) = (self.scale.items(), self.scale.warehouses);
        let count = rng.uniform(5, 15);
        let rolls_back = rng.percent(1);
        let draw = |number| {
            let is_unknown = rolls_back && number == count;
            let item = if is_unknown { items + 1 } else { rng.item(items) };
            let is_remote = rng.percent(1);
            let other =
                if is_remote { rng.other_than(warehouse, 1, warehouses) } else { warehouse };
            [number, item, other, rng.uniform(1, 10)]
        };
        (1..=count).map(draw).collect()
    }

    /// Takes the stock of a line and inserts the line. Returns its amount, or `None` for an unknown item.
    fn order_line(
        &mut self,
        (warehouse, district, order): (u32, u32, i64),
        [line, item, supplier, quantity]: [u32; 4],
    ) -> Result<Option<i64>> {
        let statements = &mut self.statements;
        let price = statements.item.query_row([item], shown::<i64, 3>).optional()?;
        let Some(price) = price else { return Ok(None) };
        let quantity = i64::from(quantity);
        let mut rows = statements.stock.query([supplier, item])?;
        let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let (stock, left): (i64, i64) = (row.get(0)?, row.get(1)?);
        black_box(row.get_ref(2)?);
        let column = usize::try_from(2 + district).unwrap_or(usize::MAX);
        // The next statement ends the row, so its 24 letters are copied.
        let info: String = row.get(column)?;
        drop(rows);
        let rest = left - quantity;
        let rest = if rest >= 10 { rest } else { rest + 91 };
        let remote = supplier != warehouse;
        statements.take_stock.execute(params![stock, rest, quantity, remote])?;
        let amount = price * quantity;
        statements.insert_order_line.execute(params![
            warehouse, district, order, line, item, supplier, quantity, amount, info
        ])?;
        Ok(Some(amount))
    }

    fn payment(&mut self, warehouse: u32) -> Result<Done> {
        let rng = &mut self.rng;
        let district = rng.uniform(1, DISTRICTS);
        let (of_warehouse, of_district) = if rng.percent(85) {
            (warehouse, district)
        } else {
            (rng.other_than(warehouse, 1, self.scale.warehouses), rng.uniform(1, DISTRICTS))
        };
        let amount = rng.uniform(100, 500_000);
        let customer = self.find_customer(of_warehouse, of_district)?;
        let statements = &mut self.statements;
        statements.pay_warehouse.execute([warehouse, amount])?;
        let warehouse_name: String =
            statements.warehouse_address.query_row([warehouse], shown::<_, 6>)?;
        statements.pay_district.execute([warehouse, district, amount])?;
        let district_name: String =
            statements.district_address.query_row([warehouse, district], shown::<_, 6>)?;
        let (id, bad_credit) = statements.payer.query_row([customer], |row| {
            let bad = row.get_ref(1)?.as_str()? == "BC";
            Ok((shown::<i64, 15>(row)?, bad))
        })?;
        if bad_credit {
            let note =
                format!("{id} {of_district} {of_warehouse} {district} {warehouse} {amount}|");
            statements.pay_with_bad_credit.execute(params![customer, amount, note])?;
        } else {
            statements.pay.execute(params![customer, amount])?;
        }
        let note = format!("{warehouse_name}    {district_name}");
        let (c_d, c_w, now) = (of_district, of_warehouse, self.now);
        statements
            .insert_history
            .execute(params![id, c_d, c_w, district, warehouse, now, amount, note])?;
        Ok(Done::Payment { history: self.db.last_insert_rowid(), amount })
    }

    /// The row of a customer: in six of ten cases by last name (clause 2.5.1.2). Among customers with one last name, it
    /// is the middle one by first name.
    fn find_customer(&mut self, warehouse: u32, district: u32) -> Result<i64> {
        let statements = &mut self.statements;
        if !self.rng.percent(60) {
            let customer = self.rng.customer(self.scale.customers());
            let key = [warehouse, district, customer];
            return statements.customer_by_id.query_row(key, |row| row.get(0));
        }
        let name = last_name(self.rng.last_name_of(self.scale.last_names()));
        let of_name = params![warehouse, district, name];
        let rows = statements.customers_by_name.query_map(of_name, |row| row.get(0))?;
        let found: Vec<i64> = rows.collect::<Result<_>>()?;
        let middle = found.len().div_ceil(2).checked_sub(1).and_then(|middle| found.get(middle));
        middle.copied().ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    fn order_status(&mut self, warehouse: u32) -> Result<Done> {
        let district = self.rng.uniform(1, DISTRICTS);
        let customer = self.find_customer(warehouse, district)?;
        let statements = &mut self.statements;
        let id: i64 = statements.customer_status.query_row([customer], shown::<_, 5>)?;
        let key = params![warehouse, district, id];
        let order: i64 = statements.last_order.query_row(key, shown::<_, 3>)?;
        let mut lines = statements.order_lines.query(params![warehouse, district, order])?;
        while let Some(line) = lines.next()? {
            black_box(shown::<i64, 5>(line)?);
        }
        Ok(Done::OrderStatus)
    }

    fn delivery(&mut self, warehouse: u32) -> Result<Done> {
        let carrier = self.rng.uniform(1, 10);
        let mut orders = Vec::new();
        for district in 1..=DISTRICTS {
            let statements = &mut self.statements;
            let oldest =
                statements.oldest_new_order.query_row([warehouse, district], shown::<_, 1>);
            let Some(order): Option<i64> = oldest.optional()? else { continue };
            let key = params![warehouse, district, order];
            statements.delete_new_order.execute(key)?;
            let customer: i64 = statements.ordering_customer.query_row(key, |row| row.get(0))?;
            statements.set_carrier.execute(params![warehouse, district, order, carrier])?;
            statements.deliver_lines.execute(params![warehouse, district, order, self.now])?;
            let amount: i64 = statements.amount_of_lines.query_row(key, |row| row.get(0))?;
            let charged = params![warehouse, district, customer, amount];
            statements.charge_customer.execute(charged)?;
            orders.push((district, order));
        }
        Ok(Done::Delivery { warehouse, orders })
    }

    fn stock_level(&mut self, warehouse: u32) -> Result<Done> {
        let (district, threshold) = (self.rng.uniform(1, DISTRICTS), self.rng.uniform(10, 20));
        let statements = &mut self.statements;
        let key = [warehouse, district];
        let next: i64 = statements.next_order_number.query_row(key, shown::<_, 1>)?;
        let args = params![warehouse, district, next, threshold];
        black_box(statements.low_stocks.query_row(args, shown::<i64, 1>)?);
        Ok(Done::StockLevel)
    }
}

/// The first of the `N` columns of a row. All are fetched, as for a terminal.
fn shown<T: FromSql, const N: usize>(row: &Row<'_>) -> Result<T> {
    for column in 1..N {
        black_box(row.get_ref(column)?);
    }
    row.get(0)
}
