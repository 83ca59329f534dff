-- A datastore of level 8, as commit 0dfac2a wrote it (tests/upgrade/level_8_life.py): every table has rows.
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE address (
	address TEXT NOT NULL,
	eni_id TEXT NOT NULL,
	prefix TEXT,
	state TEXT NOT NULL,
	since TEXT NOT NULL,
	container_id TEXT,
	ifname TEXT,
	cooling_until TEXT,
	cooled_at_s REAL,
	reason TEXT NOT NULL, since_monotonic_s REAL, other_address TEXT,
	PRIMARY KEY (address),
	UNIQUE (address, eni_id, container_id, ifname),
	UNIQUE (container_id, ifname),
	FOREIGN KEY(eni_id) REFERENCES eni (eni_id),
	FOREIGN KEY(prefix, eni_id) REFERENCES prefix (prefix, eni_id),
	FOREIGN KEY(address, eni_id, container_id, ifname) REFERENCES attachment (address, eni_id, container_id, ifname) DEFERRABLE INITIALLY DEFERRED,
	CHECK (state IN ('free', 'assigned', 'cooling', 'quarantined')),
	CHECK ((state = 'assigned') = (container_id IS NOT NULL)),
	CHECK ((container_id IS NULL) = (ifname IS NULL)),
	CHECK ((state = 'cooling') = (cooling_until IS NOT NULL))
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "address" VALUES('10.0.0.100','eni-00000000000000000',NULL,'assigned','2026-03-04T05:06:07.000000+00:00','0000000000000000000000000000000000000000000000000000000000000001','eth0',NULL,NULL,'',1000.0,'fd00::ac:17');
INSERT INTO "address" VALUES('10.0.0.101','eni-00000000000000000',NULL,'cooling','2026-03-04T05:06:07.000000+00:00',NULL,NULL,'2026-03-04T05:06:37.000000+00:00',1030.0,'DEL',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.102','eni-00000000000000000',NULL,'assigned','2026-03-04T05:06:07.000000+00:00','0000000000000000000000000000000000000000000000000000000000000003','eth0',NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.103','eni-00000000000000000',NULL,'assigned','2026-03-04T05:06:07.000000+00:00','0000000000000000000000000000000000000000000000000000000000000004','eth0',NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.104','eni-00000000000000000',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.105','eni-00000000000000000',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.106','eni-00000000000000000',NULL,'quarantined','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'wired by nobody known',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.0.107','eni-00000000000000000',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.100','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.101','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.102','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.103','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.104','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.105','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.106','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.107','eni-00000000000000001',NULL,'free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.32','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.33','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.34','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.35','eni-00000000000000001','10.0.1.32/28','assigned','2026-03-04T05:06:07.000000+00:00','0000000000000000000000000000000000000000000000000000000000000005','eth0',NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.36','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.37','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.38','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.39','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.40','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.41','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.42','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.43','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.44','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.45','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.46','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
INSERT INTO "address" VALUES('10.0.1.47','eni-00000000000000001','10.0.1.32/28','free','2026-03-04T05:06:07.000000+00:00',NULL,NULL,NULL,NULL,'',1000.0,NULL);
CREATE TABLE attachment (
	container_id TEXT NOT NULL,
	ifname TEXT NOT NULL,
	address TEXT NOT NULL,
	eni_id TEXT NOT NULL,
	route_table INTEGER NOT NULL,
	host_veth TEXT NOT NULL,
	netns TEXT NOT NULL,
	netns_device INTEGER NOT NULL,
	netns_inode INTEGER NOT NULL,
	fingerprint TEXT NOT NULL,
	result BLOB NOT NULL,
	created_at TEXT NOT NULL,
	origin TEXT NOT NULL,
	network_name TEXT NOT NULL,
	pod_namespace TEXT NOT NULL,
	pod_name TEXT NOT NULL,
	pod_uid TEXT NOT NULL, other_address TEXT,
	PRIMARY KEY (container_id, ifname),
	UNIQUE (address),
	UNIQUE (address, eni_id, container_id, ifname),
	FOREIGN KEY(address, eni_id, container_id, ifname) REFERENCES address (address, eni_id, container_id, ifname) DEFERRABLE INITIALLY DEFERRED
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "attachment" VALUES('0000000000000000000000000000000000000000000000000000000000000001','eth0','10.0.0.100','eni-00000000000000000',254,'eni28f2de260bd','/run/netns/0001',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','','fd00::ac:17');
INSERT INTO "attachment" VALUES('0000000000000000000000000000000000000000000000000000000000000003','eth0','10.0.0.102','eni-00000000000000000',254,'eni7e5cd49666d','/run/netns/0003',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','',NULL);
INSERT INTO "attachment" VALUES('0000000000000000000000000000000000000000000000000000000000000004','eth0','10.0.0.103','eni-00000000000000000',254,'eniff13e9c5dff','/run/netns/0004',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','',NULL);
INSERT INTO "attachment" VALUES('0000000000000000000000000000000000000000000000000000000000000005','eth0','10.0.1.35','eni-00000000000000001',254,'eni22624ecf032','/run/netns/0005',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','',NULL);
CREATE TABLE branch (
	container_id TEXT NOT NULL,
	ifname TEXT NOT NULL,
	address TEXT NOT NULL,
	eni_id TEXT NOT NULL,
	host_veth TEXT NOT NULL,
	netns TEXT NOT NULL,
	netns_device INTEGER NOT NULL,
	netns_inode INTEGER NOT NULL,
	fingerprint TEXT NOT NULL,
	result BLOB NOT NULL,
	created_at TEXT NOT NULL,
	origin TEXT NOT NULL,
	network_name TEXT NOT NULL,
	pod_namespace TEXT NOT NULL,
	pod_name TEXT NOT NULL,
	pod_uid TEXT NOT NULL,
	since_monotonic_s REAL,
	contradiction TEXT,
	vlan INTEGER NOT NULL CHECK (vlan BETWEEN 1 AND 4094),
	mac TEXT NOT NULL,
	gateway TEXT NOT NULL,
	is_strict INTEGER NOT NULL CHECK (is_strict IN (0, 1)),
	PRIMARY KEY (container_id, ifname),
	UNIQUE (address),
	UNIQUE (eni_id),
	UNIQUE (vlan)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "branch" VALUES('0000000000000000000000000000000000000000000000000000000000000066','eth0','10.9.0.2','eni-b0002','vlan00000000002','/run/netns/0066',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','',1000.0,NULL,2,'06:00:00:00:00:02','10.9.0.1',1);
INSERT INTO "branch" VALUES('0000000000000000000000000000000000000000000000000000000000000067','eth0','10.9.0.3','eni-b0003','vlan00000000003','/run/netns/0067',4,4026531840,'f',X'7B22636E6956657273696F6E223A2022312E312E30227D','2026-03-04T05:06:07.000000+00:00','add','','default','web-0','',1000.0,'EC2 has not confirmed it',3,'06:00:00:00:00:03','10.9.0.1',0);
CREATE TABLE doubt (
	answers TEXT NOT NULL,
	subject TEXT NOT NULL,
	began_monotonic_s REAL NOT NULL,
	counted_monotonic_s REAL NOT NULL,
	look_count INTEGER NOT NULL,
	PRIMARY KEY (answers, subject)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "doubt" VALUES('plausible','eni-00000000000000001',900.0,950.0,1);
CREATE TABLE eni (
	eni_id TEXT NOT NULL,
	mac TEXT NOT NULL,
	device_index INTEGER NOT NULL,
	network_card INTEGER NOT NULL,
	subnet_id TEXT NOT NULL,
	subnet_cidr TEXT NOT NULL,
	primary_address TEXT NOT NULL,
	is_primary INTEGER NOT NULL CHECK (is_primary IN (0, 1)),
	state TEXT NOT NULL,
	host_ready INTEGER NOT NULL CHECK (host_ready IN (0, 1)),
	created_by_us INTEGER NOT NULL CHECK (created_by_us IN (0, 1)),
	managed INTEGER NOT NULL CHECK (managed IN (0, 1)), excluded TEXT,
	PRIMARY KEY (eni_id),
	UNIQUE (primary_address),
	CHECK (state IN ('attaching', 'attached', 'draining', 'detaching'))
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "eni" VALUES('eni-00000000000000000','02:00:00:00:00:00',0,0,'subnet-1','10.0.0.0/16','10.0.0.4',1,'attached',1,0,1,NULL);
INSERT INTO "eni" VALUES('eni-00000000000000001','02:00:00:00:00:01',1,0,'subnet-1','10.0.0.0/16','10.0.1.4',0,'attached',1,1,1,NULL);
CREATE TABLE intent (
	intent_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	opened_at TEXT NOT NULL,
	payload TEXT NOT NULL,
	client_token TEXT NOT NULL,
	PRIMARY KEY (intent_id)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "intent" VALUES('addresses','assign','2026-03-04T05:06:07.000000+00:00','{"count": "3", "eni_id": "eni-00000000000000000", "of": "addresses", "opened_at_monotonic_s": "1000.0"}','token of addresses');
INSERT INTO "intent" VALUES('creation','create-eni','2026-03-04T05:06:07.000000+00:00','{"address_count": "9", "connection_tracking": "{}", "device_index": "2", "moves_left": "1", "opened_at_monotonic_s": "1000.0", "prefix_count": "0", "security_group_ids": "sg-1,sg-2", "subnet_id": "subnet-1", "tags": "{\"team\": \"net\"}"}','token of creation');
INSERT INTO "intent" VALUES('creation named','create-eni','2026-03-04T05:06:07.000000+00:00','{"address_count": "9", "connection_tracking": "{}", "device_index": "2", "eni_id": "eni-new", "moves_left": "1", "opened_at_monotonic_s": "1000.0", "prefix_count": "0", "security_group_ids": "sg-1,sg-2", "subnet_id": "subnet-1", "tags": "{\"team\": \"net\"}"}','token of creation named');
INSERT INTO "intent" VALUES('creation refused','create-eni','2026-03-04T05:06:07.000000+00:00','{"address_count": "9", "connection_tracking": "{}", "device_index": "2", "moves_left": "1", "opened_at_monotonic_s": "1000.0", "prefix_count": "0", "refused": "denied", "security_group_ids": "sg-1,sg-2", "subnet_id": "subnet-1", "tags": "{\"team\": \"net\"}"}','token of creation refused');
INSERT INTO "intent" VALUES('creation undone','create-eni','2026-03-04T05:06:07.000000+00:00','{"address_count": "9", "connection_tracking": "{}", "deleting": "asked", "device_index": "2", "eni_id": "eni-new", "moves_left": "1", "opened_at_monotonic_s": "1000.0", "prefix_count": "0", "security_group_ids": "sg-1,sg-2", "subnet_id": "subnet-1", "tags": "{\"team\": \"net\"}"}','token of creation undone');
INSERT INTO "intent" VALUES('leaked','delete-eni','2026-03-04T05:06:07.000000+00:00','{"eni_id": "eni-e", "leaked": "asked", "opened_at_monotonic_s": "1000.0"}','token of leaked');
INSERT INTO "intent" VALUES('prefixes','assign','2026-03-04T05:06:07.000000+00:00','{"count": "2", "eni_id": "eni-00000000000000001", "of": "prefixes", "opened_at_monotonic_s": "1000.0"}','token of prefixes');
INSERT INTO "intent" VALUES('release','delete-eni','2026-03-04T05:06:07.000000+00:00','{"eni_id": "eni-c", "opened_at_monotonic_s": "1000.0", "release": "asked"}','token of release');
INSERT INTO "intent" VALUES('release, detached','delete-eni','2026-03-04T05:06:07.000000+00:00','{"deleting": "detached", "eni_id": "eni-d", "opened_at_monotonic_s": "1000.0", "release": "asked"}','token of release, detached');
INSERT INTO "intent" VALUES('unassign','unassign','2026-03-04T05:06:07.000000+00:00','{"addresses": "10.0.0.107", "eni_id": "eni-00000000000000000", "opened_at_monotonic_s": "1000.0", "prefixes": ""}','token of unassign');
INSERT INTO "intent" VALUES('unattached','delete-eni','2026-03-04T05:06:07.000000+00:00','{"eni_id": "eni-b", "opened_at_monotonic_s": "1000.0"}','token of unattached');
INSERT INTO "intent" VALUES('useless','create-eni','2026-03-04T05:06:07.000000+00:00','{"address_count": "9", "connection_tracking": "{}", "deleting": "asked", "device_index": "2", "eni_id": "eni-new", "moves_left": "1", "opened_at_monotonic_s": "1000.0", "prefix_count": "0", "security_group_ids": "sg-1,sg-2", "subnet_id": "subnet-1", "tags": "{\"team\": \"net\"}", "why": "useless"}','token of useless');
INSERT INTO "intent" VALUES('useless and detached','delete-eni','2026-03-04T05:06:07.000000+00:00','{"deleting": "detached", "eni_id": "eni-a", "opened_at_monotonic_s": "1000.0", "why": "useless"}','token of useless and detached');
CREATE TABLE ledger (
	sequence INTEGER NOT NULL,
	at TEXT NOT NULL,
	event TEXT NOT NULL,
	address TEXT NOT NULL,
	container_id TEXT NOT NULL,
	ifname TEXT NOT NULL,
	eni_id TEXT NOT NULL,
	detail TEXT NOT NULL,
	PRIMARY KEY (sequence)
)
 STRICT

;
INSERT INTO "ledger" VALUES(1,'2026-03-04T05:06:07.000000+00:00','eni-added','10.0.0.4','','','eni-00000000000000000','device 0 on card 0, attached, host routing ready');
INSERT INTO "ledger" VALUES(2,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.100','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(3,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.101','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(4,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.102','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(5,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.103','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(6,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.104','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(7,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.105','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(8,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.106','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(9,'2026-03-04T05:06:07.000000+00:00','added','10.0.0.107','','','eni-00000000000000000','');
INSERT INTO "ledger" VALUES(10,'2026-03-04T05:06:07.000000+00:00','eni-added','10.0.1.4','','','eni-00000000000000001','device 1 on card 0, attached, host routing ready');
INSERT INTO "ledger" VALUES(11,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.100','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(12,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.101','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(13,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.102','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(14,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.103','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(15,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.104','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(16,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.105','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(17,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.106','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(18,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.107','','','eni-00000000000000001','');
INSERT INTO "ledger" VALUES(19,'2026-03-04T05:06:07.000000+00:00','assigned','10.0.0.100','0000000000000000000000000000000000000000000000000000000000000001','eth0','eni-00000000000000000','default/web-0');
INSERT INTO "ledger" VALUES(20,'2026-03-04T05:06:07.000000+00:00','assigned','10.0.0.101','0000000000000000000000000000000000000000000000000000000000000002','eth0','eni-00000000000000000','default/web-0');
INSERT INTO "ledger" VALUES(21,'2026-03-04T05:06:07.000000+00:00','assigned','10.0.0.102','0000000000000000000000000000000000000000000000000000000000000003','eth0','eni-00000000000000000','default/web-0');
INSERT INTO "ledger" VALUES(22,'2026-03-04T05:06:07.000000+00:00','assigned','10.0.0.103','0000000000000000000000000000000000000000000000000000000000000004','eth0','eni-00000000000000000','default/web-0');
INSERT INTO "ledger" VALUES(23,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.32','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(24,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.33','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(25,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.34','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(26,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.35','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(27,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.36','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(28,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.37','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(29,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.38','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(30,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.39','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(31,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.40','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(32,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.41','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(33,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.42','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(34,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.43','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(35,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.44','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(36,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.45','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(37,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.46','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(38,'2026-03-04T05:06:07.000000+00:00','added','10.0.1.47','','','eni-00000000000000001','in 10.0.1.32/28');
INSERT INTO "ledger" VALUES(39,'2026-03-04T05:06:07.000000+00:00','adopted','10.0.1.35','0000000000000000000000000000000000000000000000000000000000000005','eth0','eni-00000000000000001','was free');
INSERT INTO "ledger" VALUES(40,'2026-03-04T05:06:07.000000+00:00','unassigned','10.0.0.101','0000000000000000000000000000000000000000000000000000000000000002','eth0','eni-00000000000000000','DEL');
INSERT INTO "ledger" VALUES(41,'2026-03-04T05:06:07.000000+00:00','tombstoned','','0000000000000000000000000000000000000000000000000000000000000002','eth0','','');
INSERT INTO "ledger" VALUES(42,'2026-03-04T05:06:07.000000+00:00','tombstoned','','0000000000000000000000000000000000000000000000000000000000000009','eth0','','');
INSERT INTO "ledger" VALUES(43,'2026-03-04T05:06:07.000000+00:00','quarantined','10.0.0.106','','','eni-00000000000000000','wired by nobody known');
INSERT INTO "ledger" VALUES(44,'2026-03-04T05:06:07.000000+00:00','lost','10.0.0.102','0000000000000000000000000000000000000000000000000000000000000003','eth0','eni-00000000000000000','not shown');
INSERT INTO "ledger" VALUES(45,'2026-03-04T05:06:07.000000+00:00','assigned','10.9.0.2','0000000000000000000000000000000000000000000000000000000000000066','eth0','eni-b0002','default/web-0');
INSERT INTO "ledger" VALUES(46,'2026-03-04T05:06:07.000000+00:00','assigned','10.9.0.3','0000000000000000000000000000000000000000000000000000000000000067','eth0','eni-b0003','default/web-0');
INSERT INTO "ledger" VALUES(47,'2026-03-04T05:06:07.000000+00:00','lost','10.9.0.3','0000000000000000000000000000000000000000000000000000000000000067','eth0','eni-b0003','EC2 has not confirmed it');
INSERT INTO "ledger" VALUES(48,'2026-03-04T05:06:07.000000+00:00','restored','','','','','');
INSERT INTO "ledger" VALUES(49,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','','create-eni creation: address_count=9, connection_tracking={}, device_index=2, moves_left=1, opened_at_monotonic_s=1000.0, prefix_count=0, security_group_ids=sg-1,sg-2, subnet_id=subnet-1, tags={"team": "net"}');
INSERT INTO "ledger" VALUES(50,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-new','create-eni creation named: address_count=9, connection_tracking={}, device_index=2, eni_id=eni-new, moves_left=1, opened_at_monotonic_s=1000.0, prefix_count=0, security_group_ids=sg-1,sg-2, subnet_id=subnet-1, tags={"team": "net"}');
INSERT INTO "ledger" VALUES(51,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','','create-eni creation refused: address_count=9, connection_tracking={}, device_index=2, moves_left=1, opened_at_monotonic_s=1000.0, prefix_count=0, refused=denied, security_group_ids=sg-1,sg-2, subnet_id=subnet-1, tags={"team": "net"}');
INSERT INTO "ledger" VALUES(52,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-new','create-eni creation undone: address_count=9, connection_tracking={}, deleting=asked, device_index=2, eni_id=eni-new, moves_left=1, opened_at_monotonic_s=1000.0, prefix_count=0, security_group_ids=sg-1,sg-2, subnet_id=subnet-1, tags={"team": "net"}');
INSERT INTO "ledger" VALUES(53,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-new','create-eni useless: address_count=9, connection_tracking={}, deleting=asked, device_index=2, eni_id=eni-new, moves_left=1, opened_at_monotonic_s=1000.0, prefix_count=0, security_group_ids=sg-1,sg-2, subnet_id=subnet-1, tags={"team": "net"}, why=useless');
INSERT INTO "ledger" VALUES(54,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-a','delete-eni useless and detached: deleting=detached, eni_id=eni-a, opened_at_monotonic_s=1000.0, why=useless');
INSERT INTO "ledger" VALUES(55,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-b','delete-eni unattached: eni_id=eni-b, opened_at_monotonic_s=1000.0');
INSERT INTO "ledger" VALUES(56,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-c','delete-eni release: eni_id=eni-c, opened_at_monotonic_s=1000.0, release=asked');
INSERT INTO "ledger" VALUES(57,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-d','delete-eni release, detached: deleting=detached, eni_id=eni-d, opened_at_monotonic_s=1000.0, release=asked');
INSERT INTO "ledger" VALUES(58,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-e','delete-eni leaked: eni_id=eni-e, leaked=asked, opened_at_monotonic_s=1000.0');
INSERT INTO "ledger" VALUES(59,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-00000000000000000','assign addresses: count=3, eni_id=eni-00000000000000000, of=addresses, opened_at_monotonic_s=1000.0');
INSERT INTO "ledger" VALUES(60,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-00000000000000001','assign prefixes: count=2, eni_id=eni-00000000000000001, of=prefixes, opened_at_monotonic_s=1000.0');
INSERT INTO "ledger" VALUES(61,'2026-03-04T05:06:07.000000+00:00','intent-opened','','','','eni-00000000000000000','unassign unassign: addresses=10.0.0.107, eni_id=eni-00000000000000000, opened_at_monotonic_s=1000.0, prefixes=');
CREATE TABLE lost (
	address TEXT NOT NULL,
	since TEXT NOT NULL,
	reason TEXT NOT NULL,
	PRIMARY KEY (address),
	FOREIGN KEY(address) REFERENCES address (address) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "lost" VALUES('10.0.0.102','2026-03-04T05:06:07.000000+00:00','not shown');
CREATE TABLE meta (
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (name)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "meta" VALUES('boot_id','11111111-2222-3333-4444-555555555555');
INSERT INTO "meta" VALUES('created_at','2026-03-04T05:06:07.000000+00:00');
INSERT INTO "meta" VALUES('created_by','0.1.0');
INSERT INTO "meta" VALUES('family','ip');
INSERT INTO "meta" VALUES('identity','{"availability_zone": "availability_zone", "instance_id": "i-1", "instance_type": "instance_type", "primary_address": "10.0.0.4", "primary_eni_id": "primary_eni_id", "primary_mac": "primary_mac", "region": "region", "security_group_ids": ["sg-1"], "subnet_cidr": "10.0.0.0/16", "subnet_id": "subnet_id", "vpc_cidrs": ["10.0.0.0/16"], "vpc_id": "vpc_id"}');
INSERT INTO "meta" VALUES('lost_at','2026-03-04T05:06:07.000000+00:00');
INSERT INTO "meta" VALUES('pods_marked_at','2026-03-04T05:06:07.000000+00:00');
INSERT INTO "meta" VALUES('restored_at','2026-03-04T05:06:07.000000+00:00');
INSERT INTO "meta" VALUES('schema_level','8');
CREATE TABLE owed (
	namespace TEXT NOT NULL,
	pod TEXT NOT NULL,
	since TEXT NOT NULL,
	PRIMARY KEY (namespace, pod)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "owed" VALUES('default','web-0','2026-03-04T05:06:07.000000+00:00');
CREATE TABLE prefix (
	prefix TEXT NOT NULL,
	eni_id TEXT NOT NULL,
	PRIMARY KEY (prefix),
	UNIQUE (prefix, eni_id),
	FOREIGN KEY(eni_id) REFERENCES eni (eni_id),
	CHECK (prefix LIKE '%/28')
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "prefix" VALUES('10.0.1.32/28','eni-00000000000000001');
CREATE TABLE tombstone (
	container_id TEXT NOT NULL,
	ifname TEXT NOT NULL,
	at TEXT NOT NULL, at_monotonic_s REAL,
	PRIMARY KEY (container_id, ifname)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "tombstone" VALUES('0000000000000000000000000000000000000000000000000000000000000002','eth0','2026-03-04T05:06:07.000000+00:00',1000.0);
INSERT INTO "tombstone" VALUES('0000000000000000000000000000000000000000000000000000000000000009','eth0','2026-03-04T05:06:07.000000+00:00',1000.0);
CREATE INDEX ledger_address ON ledger (address);
CREATE INDEX ledger_container_id ON ledger (container_id);
CREATE TRIGGER address_is_not_primary BEFORE INSERT ON address
    WHEN EXISTS (SELECT 1 FROM eni WHERE primary_address = NEW.address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END;
CREATE TRIGGER eni_primary_is_not_given BEFORE INSERT ON eni
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.primary_address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END;
CREATE TRIGGER eni_primary_stays_ungiven BEFORE UPDATE OF primary_address ON eni
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.primary_address)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END;
CREATE TRIGGER assigned_is_not_removed BEFORE DELETE ON address WHEN OLD.state = 'assigned'
    BEGIN SELECT RAISE(ABORT, 'I2: the address of a live sandbox is untouchable'); END;
CREATE TRIGGER assigned_cools_first BEFORE UPDATE OF state ON address
    WHEN OLD.state = 'assigned' AND NEW.state <> 'cooling'
    BEGIN SELECT RAISE(ABORT, 'I8: an assigned address cools before anything else'); END;
CREATE TRIGGER deleted_sandbox_stays_deleted BEFORE INSERT ON attachment
    WHEN EXISTS (SELECT 1 FROM tombstone WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I4: DEL was done for this key'); END;
CREATE TRIGGER address_age_is_of_its_time AFTER UPDATE OF since ON address
            WHEN NEW.since <> OLD.since AND NEW.since_monotonic_s = OLD.since_monotonic_s
            BEGIN UPDATE address SET since_monotonic_s = NULL WHERE address = NEW.address; END;
CREATE TRIGGER tombstone_age_is_of_its_time AFTER UPDATE OF at ON tombstone
            WHEN NEW.at <> OLD.at AND NEW.at_monotonic_s = OLD.at_monotonic_s
            BEGIN UPDATE tombstone SET at_monotonic_s = NULL WHERE container_id = NEW.container_id AND ifname = NEW.ifname; END;
CREATE UNIQUE INDEX attachment_other_address ON attachment (other_address) WHERE other_address IS NOT NULL;
CREATE UNIQUE INDEX address_other_address ON address (other_address) WHERE other_address IS NOT NULL;
CREATE TRIGGER other_address_cools_with_its_own AFTER UPDATE OF state ON address
            WHEN NEW.state = 'free' AND NEW.other_address IS NOT NULL
            BEGIN UPDATE address SET other_address = NULL WHERE address = NEW.address; END;
CREATE TRIGGER branch_is_not_of_the_pool BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM address WHERE address = NEW.address) OR EXISTS (SELECT 1 FROM attachment
        WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I1: a branch address is not of the pool, and a sandbox has one address'); END;
CREATE TRIGGER branch_is_not_primary BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM eni WHERE primary_address = NEW.address OR eni_id = NEW.eni_id)
    BEGIN SELECT RAISE(ABORT, 'I6: the primary address of an ENI is never given to a sandbox'); END;
CREATE TRIGGER attached_to_a_branch BEFORE INSERT ON attachment
    WHEN EXISTS (SELECT 1 FROM branch WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I1: a sandbox has one address'); END;
CREATE TRIGGER deleted_branch_stays_deleted BEFORE INSERT ON branch
    WHEN EXISTS (SELECT 1 FROM tombstone WHERE container_id = NEW.container_id AND ifname = NEW.ifname)
    BEGIN SELECT RAISE(ABORT, 'I4: DEL was done for this key'); END;
CREATE TRIGGER branch_ends_with_its_sandbox AFTER INSERT ON tombstone
    BEGIN DELETE FROM branch WHERE container_id = NEW.container_id AND ifname = NEW.ifname; END;
COMMIT;
