from orbit.server.admin import main

main()
