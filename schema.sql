-- The receiver's own two tables; the platform's tables live elsewhere: orbit/server/migrations, in the platform's own database.
--
-- Run by `receiver init` in an empty database of the receiver's. No foreign keys and no key but the primary ones: that
-- error 1062 from the inbox INSERT means "this event is known" rests on it. The collation utf8mb4_0900_bin compares
-- bytes and pads nothing; documents are MEDIUMTEXT because a JSON column rewrites numbers and sorts members.

CREATE TABLE receiver_inbox (
  consumer_name VARCHAR(64) NOT NULL COMMENT '接收用途的固定名称，多个实例共用同一个名称',
  queue_id VARCHAR(32) NOT NULL COMMENT '事件来自哪个队列（32 位十六进制标识）',
  event_id VARCHAR(32) NOT NULL COMMENT '事件标识，与前两列一起判断是否收到过',
  event MEDIUMTEXT NOT NULL COMMENT '受理时冻结的完整事件，规范化 JSON 原文',
  event_sha256 VARCHAR(64) NOT NULL COMMENT '事件原文 UTF-8 字节的 SHA-256，十六进制',
  applied TINYINT(1) NOT NULL COMMENT '1 表示该事件推进了结果视图，0 表示到达时已是旧版本',
  accepted_at DATETIME(6) NOT NULL COMMENT '受理时间，数据库时钟的 UTC',
  PRIMARY KEY (consumer_name, queue_id, event_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

CREATE TABLE receiver_task_views (
  consumer_name VARCHAR(64) NOT NULL COMMENT '视图所属的接收用途名称',
  queue_id VARCHAR(32) NOT NULL COMMENT '任务所在队列的标识',
  task_id VARCHAR(32) NOT NULL COMMENT '任务标识，每个任务在一个接收用途下只有一行',
  task_version BIGINT UNSIGNED NOT NULL COMMENT '已采用的最大任务版本，只增不减',
  last_event_id VARCHAR(32) NOT NULL COMMENT '最近一次推进视图的事件标识',
  state VARCHAR(32) NOT NULL COMMENT '该事件给出的任务状态，待核查不等于成功',
  result MEDIUMTEXT NULL COMMENT '该事件携带的结果，JSON 原文；未携带时为 NULL',
  applied_events BIGINT UNSIGNED NOT NULL COMMENT '推进过本视图的事件个数',
  created_at DATETIME(6) NOT NULL COMMENT '本行建立时间，数据库时钟的 UTC',
  updated_at DATETIME(6) NOT NULL COMMENT '本行最近一次推进的时间，数据库时钟的 UTC',
  PRIMARY KEY (consumer_name, queue_id, task_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
