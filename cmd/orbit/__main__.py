from orbit.server.cli import main

main()
