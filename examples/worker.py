from orbit.sdk import WorkerRunner

runner = WorkerRunner(concurrency=4)


@runner.handler("text.normalize", version="v1", payload_version="v1")
def normalize(payload: dict[str, str]) -> dict[str, str]:
    return {"text": payload["text"].strip().upper()}


if __name__ == "__main__":
    raise SystemExit(runner.main())
