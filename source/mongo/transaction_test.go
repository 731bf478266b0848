package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// inTransaction runs do in a transaction of the world's client.
func (w *world) inTransaction(do func(tx *transaction)) {
	w.t.Helper()
	tx := w.begin()
	do(tx)
	tx.commit()
}

// transaction is one that is open.
type transaction struct {
	*world
	session *driver.Session
}

func (w *world) begin() *transaction {
	w.t.Helper()
	session, err := w.client.StartSession()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { session.EndSession(context.Background()) })
	if err := session.StartTransaction(); err != nil {
		w.t.Fatal(err)
	}
	return &transaction{w, session}
}

func (tx *transaction) insert(docs ...bson.D) {
	tx.t.Helper()
	for _, d := range docs {
		if _, err := tx.outbox.InsertOne(driver.NewSessionContext(tx.t.Context(), tx.session), d); err != nil {
			tx.t.Fatal(err)
		}
	}
}

func (tx *transaction) commit() {
	tx.t.Helper()
	if err := tx.session.CommitTransaction(tx.t.Context()); err != nil {
		tx.t.Fatal(err)
	}
}

func (tx *transaction) change(id any) {
	tx.t.Helper()
	ctx := driver.NewSessionContext(tx.t.Context(), tx.session)
	if _, err := tx.outbox.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, set(bson.D{{Key: "note", Value: "x"}})); err != nil {
		tx.t.Fatal(err)
	}
}
